// Sorts a table by the column whose heading is pressed: up, then down. Rows without a number stay last.
"use strict";
for (const table of document.querySelectorAll("table[data-sortable]")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const words = new Intl.Collator("en", { numeric: true });
  const key = (row, column) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent.trim();
  };
  heads.forEach((head, column) => {
    const name = head.querySelector("span");
    if (!name.textContent) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...name.childNodes);
    name.append(button);
    const numeric = head.classList.contains("number");
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const order = ([a], [b]) => {
        if (numeric && typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
        const sign = typeof a === "number" && typeof b === "number" ? a - b : words.compare(String(a), String(b));
        return down ? -sign : sign;
      };
      const keyed = [...body.rows].map((row) => [key(row, column), row]);
      body.append(...keyed.sort(order).map(([, row]) => row));
    });
  });
}
// A region that is wider than its place is marked, so that its hint shows; tables that are folded away have no width.
if ("ResizeObserver" in window) {
  const mark = (region) => region.toggleAttribute("data-wide", region.scrollWidth > region.clientWidth + 1);
  const seen = new ResizeObserver((entries) => {
    for (const { target } of entries) mark(target.closest(".scroll"));
  });
  for (const region of document.querySelectorAll(".scroll")) {
    seen.observe(region);
    if (region.firstElementChild) seen.observe(region.firstElementChild);
  }
}
// A link to something that is folded away unfolds it.
const unfold = () => {
  let name = location.hash.slice(1);
  try {
    name = decodeURIComponent(name);
  } catch {
    return;
  }
  const wanted = document.getElementById(name);
  if (!wanted) return;
  for (let at = wanted.parentElement; at; at = at.parentElement) if (at.matches("details")) at.open = true;
  wanted.scrollIntoView();
};
addEventListener("hashchange", unfold);
unfold();
