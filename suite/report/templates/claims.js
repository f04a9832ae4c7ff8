// A count of claims leads to these claims.
for (const link of document.querySelectorAll("a[data-to]")) {
  const parts = new URLSearchParams();
  if (link.dataset.filter) parts.set(link.dataset.filter, link.dataset.to);
  if (link.dataset.verdict) parts.set("verdict", link.dataset.verdict);
  if (link.dataset.evidence) parts.set("evidence", link.dataset.evidence);
  if (String(parts)) link.href += `?${parts}`;
}
// Filters the table of claims: search, menus, "n of m". The address keeps the filter (#claims?paper=SAMO&search=ratio).
(() => {
  const table = document.querySelector("table.claims");
  if (!table) return;
  const bar = document.querySelector(".filters");
  const search = bar.querySelector("input");
  const menus = [...bar.querySelectorAll("select:not([data-order])")];
  const order = bar.querySelector("select[data-order]");
  const shown = bar.querySelector("[data-shown]");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => ({ row, is: row.dataset.is.split(","), text: row.textContent.toLowerCase() }));
  let written = "";

  const show = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wished = menus.map((menu) => menu.value);
    let count = 0;
    for (const { row, is, text } of rows) {
      const fits = wished.every((value, i) => value === "" || value === is[i]) && words.every((word) => text.includes(word));
      row.hidden = !fits;
      count += fits;
    }
    shown.textContent = `${count} of ${rows.length}`;
  };
  const keep = () => {
    const parts = new URLSearchParams();
    if (search.value) parts.set("search", search.value);
    for (const menu of menus) if (menu.value !== "") parts.set(menu.name, menu.selectedOptions[0].text);
    written = String(parts) ? `#claims?${parts}` : "#claims";
    history.replaceState(null, "", written);
  };
  const clear = () => {
    search.value = "";
    for (const menu of menus) menu.value = "";
  };
  const follow = () => {
    const hash = location.hash;
    if (hash.startsWith("#claims?")) {
      const parts = new URLSearchParams(hash.slice(8));
      search.value = parts.get("search") ?? "";
      for (const menu of menus) {
        const option = [...menu.options].find((item) => item.text === parts.get(menu.name));
        menu.value = option ? option.value : "";
      }
      show();
      if (hash !== written) document.getElementById("claims").scrollIntoView();
    } else if (hash.startsWith("#claim-")) {
      const row = document.getElementById(hash.slice(1));
      if (row?.hidden) {
        clear();
        show();
      }
      row?.scrollIntoView({ block: "center" });
    }
  };

  let waiting = 0;
  bar.addEventListener("input", () => {
    show();
    clearTimeout(waiting);
    waiting = setTimeout(keep, 200);
  });
  bar.querySelector("[data-clear]").addEventListener("click", () => {
    clear();
    show();
    keep();
  });
  order.addEventListener("change", () => {
    if (order.value === "") body.append(...rows.map(({ row }) => row));
    else table.tHead.rows[0].cells[order.value].querySelector("button").click();
  });
  addEventListener("hashchange", follow);
  bar.hidden = false;
  show();
  follow();
})();
