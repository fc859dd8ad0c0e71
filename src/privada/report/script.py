"""What the page does: draw charts, change colours, sort tables. It asks nothing of a network."""

SCRIPT = """
(() => {
  "use strict";
  const root = document.documentElement;
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const paperWidth = 660;
  let drawable = false;

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const coloured = (value, key) => {
    if (Array.isArray(value)) return value.map((each) => coloured(each, key));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v, k)]));
    }
    const named = key === "color" && typeof value === "string" && value.startsWith("--");
    return named ? colour(value) : value;
  };

  const axis = (own) => ({
    gridcolor: colour("--line"), linecolor: colour("--line"), zerolinecolor: colour("--line"),
    tickcolor: colour("--line"), automargin: true, ...own,
    title: { standoff: 12, font: { size: 13 }, ...(own && own.title) },
  });
  const layout = (plot, width) => {
    const own = coloured(plot.layout);
    return {
      ...own,
      height: plot.height, width, autosize: width === undefined,
      margin: { l: 56, r: 16, t: 20, b: 44, ...own.margin },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 13,
              color: colour("--soft") },
      hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--line"),
                    font: { color: colour("--text") } },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", ...own.legend },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--quiet"),
                 activecolor: colour("--accent") },
      xaxis: { spikecolor: colour("--soft"), spikethickness: 1, ...axis(own.xaxis) },
      yaxis: { showspikes: false, ...axis(own.yaxis) },
    };
  };
  const options = {
    responsive: true, displaylogo: false,
    // those that stay on this machine
    modeBarButtons: [["toImage"], ["zoom2d", "pan2d", "resetScale2d"]],
  };
  const draw = (printing) => {
    if (!drawable) return;
    for (const [name, plot] of Object.entries(plots)) {
      const place = document.getElementById(name);
      const half = place.closest(".pair") ? 0.48 : 1;
      const width = printing ? Math.floor(paperWidth * half) : undefined;
      Plotly.react(place, coloured(plot.traces), layout(plot, width), options);
    }
  };

  const button = document.getElementById("theme");
  const isDark = () => (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  const show = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
    draw(false);
  };
  try {
    const kept = localStorage.getItem("privada-theme");
    if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  } catch { /* a browser that keeps nothing */ }
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("privada-theme", root.dataset.theme); } catch { /* as above */ }
    show();
  });
  dark.addEventListener("change", show);

  const closed = [];
  const beforePrint = () => {
    root.dataset.printing = "";
    for (const each of document.querySelectorAll("details.printed:not([open])")) {
      each.open = true;
      closed.push(each);
    }
    draw(true);
  };
  const afterPrint = () => {
    delete root.dataset.printing;
    for (const each of closed.splice(0)) each.open = false;
    draw(false);
  };
  addEventListener("beforeprint", beforePrint);
  addEventListener("afterprint", afterPrint);

  const sorted = (table, column, up) => {
    const value = (row) => {
      const cell = row.cells[column];
      const exact = cell.matches("[data-value]") ? cell : cell.querySelector("[data-value]");
      return exact ? exact.dataset.value : cell.textContent;
    };
    const rows = [...table.tBodies[0].rows].sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      const [m, n] = [Number(a), Number(b)];
      const order = Number.isNaN(m) || Number.isNaN(n) ? a.localeCompare(b) : m - n;
      return up ? order : -order;
    });
    table.tBodies[0].append(...rows);
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const press = document.createElement("button");
      press.type = "button";
      press.append(...head.childNodes);
      head.append(press);
      press.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((each) => each.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        sorted(table, column, up);
      });
    });
  }

  const unpacked = async (identifier) => {
    const packed = atob(document.getElementById(identifier).textContent);
    const bytes = Uint8Array.from(packed, (sign) => sign.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };
  const start = async () => {
    if (Object.keys(plots).length) {
      const library = document.createElement("script");
      library.textContent = await unpacked("plotly");
      document.head.append(library);
      drawable = typeof Plotly === "object";
      if (drawable) root.classList.add("charts");
    }
    show();
    root.dataset.ready = "";
  };
  show();
  start().catch(() => {  // a browser that cannot unpack shows the tables
    root.dataset.ready = "";
  });
})();
"""
