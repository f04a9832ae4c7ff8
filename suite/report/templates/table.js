// Sorts a table by the column whose heading is pressed: up, then down. Rows without a number stay last.
"use strict";
for (const table of document.querySelectorAll("table[data-sortable]")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
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
      const order = (left, right) => {
        const a = key(left, column);
        const b = key(right, column);
        if (numeric && typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
        const sign = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
        return down ? -sign : sign;
      };
      body.append(...[...body.rows].sort(order));
    });
  });
}
