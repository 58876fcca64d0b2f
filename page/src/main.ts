// Puts the interactive picture and table in the place of those that Python has made.
import { changeColumns, rowColumns } from "./columns";
import { type Change, type PageData, type TreeItem, readData } from "./data";
import { details } from "./details";
import { choice, find, make } from "./dom";
import { type Frame, Icicle } from "./icicle";
import { metricsOf } from "./metrics";
import { count, percent } from "./numbers";
import { type Column, Table } from "./table";

const TITLES: Record<string, string> = { module: "Modules", class: "Classes", function: "Functions", call: "Calls" };

class Picture {
  private tree: TreeItem[];
  private metric = "total";
  private icicle!: Icicle;
  private readonly panel = make("div", { class: "details", "aria-live": "polite" });
  private readonly result = make("output", { class: "result" });
  private readonly reset: HTMLButtonElement;
  private readonly search: HTMLInputElement;

  constructor(
    private readonly data: PageData,
    private readonly place: HTMLElement,
    private readonly svg: SVGSVGElement,
  ) {
    this.tree = data.trees.modules ?? [];
    this.reset = make("button", { type: "button", hidden: true, click: () => this.icicle.zoom(this.icicle.root) }, "Reset zoom");
    this.search = make("input", { type: "search", placeholder: "Search names and classes", "aria-label": "Search the picture" });
    this.search.addEventListener("input", () => this.find());
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && this.icicle.best) this.icicle.zoom(this.icicle.best);
    });
    this.controls();
    this.place.append(this.panel);
    this.svg.setAttribute("role", "tree");
    this.svg.replaceChildren();
    this.draw();
  }

  /** Look at the calls of a name, if they are in the picture. */
  goTo(name: string): void {
    const frame = this.icicle.widest(name);
    if (!frame) return;
    this.icicle.zoom(frame);
    this.svg.scrollIntoView({ block: "nearest" });
  }

  private controls(): void {
    const bar = make("div", { class: "controls" });
    if (this.data.trees.functions) {
      const levels = [
        { id: "modules", title: "Modules" },
        { id: "functions", title: "With functions" },
      ];
      bar.append(
        choice("What is shown", levels, "modules", (id) => {
          this.tree = this.data.trees[id] ?? this.tree;
          this.draw();
        }),
      );
    }
    const metrics = metricsOf(this.tree);
    const choose = (id: string): void => {
      this.metric = id;
      this.draw();
    };
    if (metrics.length > 1) bar.append(choice("Width and colour", metrics, this.metric, choose));
    bar.append(this.search, this.result, this.reset);
    this.place.prepend(bar);
  }

  private draw(): void {
    const metrics = metricsOf(this.tree);
    const metric = metrics.find(({ id }) => id === this.metric) ?? metrics[0];
    if (!metric || !this.tree.length) return;
    const colour = this.data.changes ? { colour: (item: TreeItem) => this.colour(item) } : {};
    this.icicle = new Icicle(
      this.svg,
      { items: this.tree, metric, ...colour },
      (frame) => this.show(frame),
      (frame) => this.reset.toggleAttribute("hidden", frame === this.icicle.root),
    );
    this.reset.hidden = true;
    if (this.search.value) this.find();
  }

  private find(): void {
    const { count: found, value } = this.icicle.search(this.search.value);
    const share = percent(value, this.icicle.root.value ?? 0);
    this.result.value = this.search.value.trim() ? `${count(found)} found, ${share}` : "";
  }

  private show(frame: Frame): void {
    const { item } = frame.data;
    const wall = this.tree[0];
    const whole = wall ? wall.totals.reduce((sum, totals) => sum + totals.cumulative, 0) : 0;
    this.panel.replaceChildren(...details(item, whole, this.changesOf(item)));
  }

  private changesOf(item: TreeItem): Change[] {
    return this.data.moduleChanges.get(item.name) ?? [];
  }

  /** Red if it became slower, blue if faster: by its largest change beyond noise. */
  private colour(item: TreeItem): string {
    if (this.data.added.has(item.name)) return "new";
    const phases = this.metric === "forward" || this.metric === "backward" ? [this.metric] : null;
    const beyond = this.changesOf(item).filter(({ verdict, phase }) => verdict && (phases?.includes(phase) ?? true));
    const [largest] = beyond.sort((one, other) => Math.abs(other.after - other.before) - Math.abs(one.after - one.before));
    if (!largest) return "same";
    const strength = Math.abs(largest.after - largest.before) > 0.25 * largest.before ? 2 : 1;
    return `${largest.verdict > 0 ? "slower" : "faster"}${strength}`;
  }
}

class Rows {
  private readonly body = make("div", { class: "scroll" });
  private readonly filter = make("input", { type: "search", placeholder: "Filter rows", "aria-label": "Filter the table" });
  private table!: { filter(text: string): void };

  constructor(
    private readonly data: PageData,
    place: HTMLElement,
    private readonly wall: number,
    private readonly goTo: (name: string) => void,
  ) {
    const bar = make("div", { class: "controls" });
    const kinds = Object.keys(data.rows);
    const options = kinds.map((id) => ({ id, title: TITLES[id] ?? id }));
    if (data.changes) options.unshift({ id: "changes", title: "Changes" });
    const first = options[0]?.id ?? "module";
    if (options.length > 1) bar.append(choice("Rows are", options, first, (id) => this.draw(id)));
    bar.append(this.filter);
    this.filter.addEventListener("input", () => this.table.filter(this.filter.value));
    place.replaceChildren(bar, this.body);
    this.draw(first);
  }

  private draw(by: string): void {
    if (by === "changes") {
      const columns = changeColumns("name");
      this.make("Changes", columns, this.data.changes ?? [], columns[4]);
    } else {
      const rows = this.data.rows[by] ?? [];
      const columns = rowColumns(by, rows, this.wall);
      this.make(TITLES[by] ?? by, columns, rows, columns.find(({ title }) => title === "own"));
    }
    if (this.filter.value) this.table.filter(this.filter.value);
  }

  private make<Row extends { name: string }>(title: string, columns: Column<Row>[], rows: Row[], first?: Column<Row>): void {
    this.table = new Table(this.body, title, columns, rows, first, (row) => this.goTo(row.name));
  }
}

/** Light or dark by a button; at first as the system has it. */
function addThemeButton(): void {
  const toggle = (): void => {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
  };
  find("header")?.append(make("button", { type: "button", class: "theme", click: toggle }, "Light or dark"));
}

function start(): void {
  const data = readData(find("#data")?.textContent ?? "{}");
  const [picture, svg, rows] = [find("#picture"), find<SVGSVGElement>("#icicle"), find("#rows")];
  const wall = data.trees.modules?.[0]?.totals.reduce((sum, totals) => sum + totals.cumulative, 0) ?? 0;
  const shown = picture && svg ? new Picture(data, picture, svg) : null;
  if (rows) new Rows(data, rows, wall, (name) => shown?.goTo(name));
  addThemeButton();
  document.documentElement.dataset.ready = "true";
}

start();
