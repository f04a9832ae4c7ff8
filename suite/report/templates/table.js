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
