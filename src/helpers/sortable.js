// Tables of class "sortable": sorted by click or key on a column's head, filtered by the form that data-filters names.
// th data-type="number": a column of numbers. td data-v: what a cell is sorted by, if not its text. Unknown comes last.
// table data-limit: rows shown until a reader asks for all of them.
"use strict";
{
  const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

  const keyOf = (cell, isNumber) => {
    const text = cell.dataset.v ?? cell.textContent.trim();
    return isNumber ? parseFloat(text) : text;
  };

  const compare = (a, b, isNumber) => {
    const hasA = isNumber ? !Number.isNaN(a) : a !== "";
    const hasB = isNumber ? !Number.isNaN(b) : b !== "";
    if (!hasA || !hasB) return { last: true, sign: Number(hasB) - Number(hasA) };
    return { last: false, sign: isNumber ? a - b : collator.compare(a, b) };
  };

  // The parts of a form that narrow the rows, as one test of a row; every row fits where there is no form.
  const filterOf = (form, rows) => {
    if (!form) return () => true;
    const search = form.querySelector("[data-search]");
    const selects = [...form.querySelectorAll("select[data-column]")];
    const textAt = (row, select) => row.cells[select.dataset.column].textContent.trim();
    for (const select of selects) {
      const values = [...new Set(rows.map((row) => textAt(row, select)))].filter(Boolean).sort(collator.compare);
      select.append(...values.map((value) => new Option(value, value)));
      select.parentElement.hidden = values.length < 2;
    }
    const texts = new Map();
    const textOf = (row) => {
      if (!texts.has(row)) texts.set(row, row.textContent.toLowerCase());
      return texts.get(row);
    };
    return (row) => {
      const words = search ? search.value.toLowerCase().split(/\s+/).filter(Boolean) : [];
      return words.every((word) => textOf(row).includes(word))
        && selects.every((select) => !select.value || textAt(row, select) === select.value);
    };
  };

  const enliven = (table) => {
    let rows = [...table.tBodies[0].rows];
    let limit = Number(table.dataset.limit) || Infinity; // a browser lays out so many rows without a pause
    const heads = [...table.tHead.rows[0].cells];
    const form = document.getElementById(table.dataset.filters);
    const fits = filterOf(form, rows);
    const more = document.createElement("button");

    const show = () => {
      let count = 0;
      for (const row of rows) {
        const isHidden = !fits(row) || ++count > limit;
        if (row.hidden !== isHidden) row.hidden = isHidden;
      }
      more.hidden = count <= limit;
      more.textContent = `Show all ${count}`;
      const rest = count > limit ? `, the first ${limit} shown` : "";
      if (form) form.querySelector("output").textContent = `${count} of ${rows.length}${rest}`;
    };

    const sortBy = (index) => {
      const head = heads[index];
      const direction = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      const isNumber = head.dataset.type === "number";
      const keyed = rows.map((row) => [keyOf(row.cells[index], isNumber), row]);
      keyed.sort(([a], [b]) => {
        const { last, sign } = compare(a, b, isNumber);
        return last ? sign : direction * sign;
      });
      rows = keyed.map(([, row]) => row);
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
      show();
      table.tBodies[0].append(...rows);
    };

    heads.forEach((head, index) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.addEventListener("click", () => sortBy(index));
      head.append(button);
    });
    more.type = "button";
    more.className = "more";
    more.addEventListener("click", () => {
      limit = Infinity;
      show();
    });
    (table.closest(".box") ?? table).after(more);
    if (form) {
      form.addEventListener("input", show);
      form.addEventListener("submit", (event) => event.preventDefault());
      form.addEventListener("reset", () => setTimeout(show));
      form.hidden = false;
    }
    show();
  };

  document.querySelectorAll("table.sortable").forEach(enliven);
}
