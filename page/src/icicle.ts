// A table whose rows are a tree, as an icicle: below each frame lie those that it called.
import { hierarchy, partition, type HierarchyRectangularNode } from "d3-hierarchy";
import { select } from "d3-selection";
import { nameOf, type Column, type TableData } from "./data";
import { inUnit, percent } from "./numbers";

interface Place {
  row: number; // -1: all of them
  children: Place[];
}

export type Frame = HierarchyRectangularNode<Place>;

/** Pixels from one level to the next, and of a character of a name. */
const LEVEL = 26;
const CHARACTER = 7;
/** The narrowest frame that is drawn, as a share of the width. */
const NARROWEST = 0.0007;

export class Icicle {
  readonly root: Frame;
  private focus: Frame;
  private current: Frame;
  private found = new Set<Frame>();
  private isSearching = false;
  private pixels = 0;

  /**
   * metric: the column of own values that frames are as wide as.
   * toneOf: gives a row its colour.
   */
  constructor(
    private readonly svg: SVGSVGElement,
    private readonly table: TableData,
    private readonly metric: Column,
    private readonly toneOf: (row: number) => string,
    private readonly show: (row: number) => void,
    private readonly zoomed: (isWhole: boolean) => void,
  ) {
    this.root = layOut(table, metric);
    this.focus = this.current = this.root;
    svg.onkeydown = (event) => this.onKey(event);
    this.draw();
    show(-1);
  }

  zoom(frame: Frame): void {
    this.focus = this.current = frame;
    this.draw();
    this.show(frame.data.row);
    this.zoomed(frame === this.root);
  }

  /** Names as they fit, where the room has changed. */
  fit(): void {
    if (this.svg.clientWidth !== this.pixels) this.draw();
  }

  zoomToRow(row: number): void {
    const frame = this.root.find((each) => each.data.row === row);
    if (frame) this.zoom(frame);
  }

  /** Mark what has the text in its name. Returns how many there are, and their share. */
  search(text: string): { count: number; share: string } {
    const wanted = text.trim().toLowerCase();
    this.isSearching = wanted !== "";
    const matches = (frame: Frame): boolean => nameOf(this.table, frame.data.row).toLowerCase().includes(wanted);
    this.found = new Set(this.root.descendants().filter((frame) => this.isSearching && frame !== this.root && matches(frame)));
    this.draw();
    const outermost = [...this.found].filter((frame) => !frame.ancestors().slice(1).some((around) => this.found.has(around)));
    const sum = outermost.reduce((all, frame) => all + (frame.value ?? 0), 0);
    return { count: this.found.size, share: percent(sum, this.root.value ?? 0) };
  }

  /** The widest of those that were found. */
  get best(): Frame | undefined {
    return widestOf([...this.found]);
  }

  private draw(): void {
    const frames = this.visible();
    const lowest = Math.max(...frames.map((frame) => frame.depth));
    this.svg.setAttribute("height", String(lowest * LEVEL));
    const { x0, x1 } = this.focus;
    const place = (x: number): number => Math.min(Math.max((x - x0) / (x1 - x0 || 1), 0), 1);
    const width = (frame: Frame): number => place(frame.x1) - place(frame.x0);
    this.pixels = this.svg.clientWidth;
    const pixels = this.pixels || 1000;
    const hasFocus = this.svg.contains(document.activeElement);
    const drawn = select(this.svg)
      .selectAll<SVGSVGElement, Frame>("svg")
      .data(frames.filter((frame) => frame !== this.root), (frame) => String(frame?.data.row))
      .join((enter) => {
        const added = enter.append("svg").attr("role", "treeitem").attr("height", LEVEL - 1);
        added.append("rect").attr("class", "body").attr("width", "100%").attr("height", "100%");
        added.append("rect").attr("class", "own").attr("y", LEVEL - 5).attr("height", 4);
        added.append("text").attr("x", 5).attr("y", 16);
        added.on("click", (_, frame) => this.zoom(frame));
        added.on("pointerenter", (_, frame) => this.show(frame.data.row));
        added.on("pointerleave", () => this.show(this.current.data.row));
        added.on("focus", (_, frame) => this.show(frame.data.row));
        return added;
      })
      .attr("class", (frame) => this.classOf(frame))
      .attr("x", (frame) => inPercent(place(frame.x0)))
      .attr("y", (frame) => (frame.depth - 1) * LEVEL)
      .attr("width", (frame) => inPercent(width(frame)))
      .attr("aria-level", (frame) => frame.depth)
      .attr("aria-label", (frame) => `${nameOf(this.table, frame.data.row)}, ${this.text(frame)}`)
      .attr("tabindex", (frame) => (frame === this.current || (this.current === this.root && frame.depth === 1) ? 0 : -1))
      .order();
    drawn.select("rect.own").attr("width", (frame) => inPercent(this.own(frame) / (frame.value || 1)));
    drawn.select("text").text((frame) => this.label(frame, width(frame) * pixels));
    if (hasFocus) this.node(this.current)?.focus();
  }

  /** What is around the focus, and what lies in it and is wide enough. */
  private visible(): Frame[] {
    const least = (this.focus.x1 - this.focus.x0) * NARROWEST;
    const frames = this.focus.ancestors().reverse();
    const coming = [...(this.focus.children ?? [])];
    for (let frame = coming.pop(); frame; frame = coming.pop()) {
      if (frame.x1 - frame.x0 >= least || frame === this.current) {
        frames.push(frame);
        coming.push(...(frame.children ?? []));
      }
    }
    return frames;
  }

  private classOf(frame: Frame): string {
    const classes = ["frame", this.toneOf(frame.data.row)];
    if (this.focus.ancestors().slice(1).includes(frame)) classes.push("around");
    if (this.isSearching) classes.push(this.found.has(frame) ? "found" : "other");
    return classes.join(" ");
  }

  private own(frame: Frame): number {
    return Math.max(Number(this.metric.values[frame.data.row] ?? 0), 0);
  }

  private text(frame: Frame): string {
    return `${inUnit(this.metric.unit, frame.value ?? 0)}, ${percent(frame.value ?? 0, this.root.value ?? 0)}`;
  }

  /** The name and the share, the name alone, or nothing: never a part of a word. */
  private label(frame: Frame, pixels: number): string {
    const name = this.table.labels[frame.data.row] ?? "";
    const short = name.replace(/: .*|(.)\(.*/, "$1"); // without its class, or shapes
    const share = percent(frame.value ?? 0, this.root.value ?? 0);
    const fitting = [`${name}  ${share}`, name, short].find((text) => text.length * CHARACTER + 8 <= pixels);
    return fitting ?? "";
  }

  private node(frame: Frame): SVGSVGElement | undefined {
    const all = select(this.svg).selectAll<SVGSVGElement, Frame>("svg");
    return all.nodes().find((_, index) => all.data()[index] === frame);
  }

  private onKey(event: KeyboardEvent): void {
    const step = this.goal(event.key);
    if (step) {
      event.preventDefault();
      this.current = step;
      this.draw();
      this.node(step)?.focus();
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.zoom(this.current);
    } else if (event.key === "Escape") {
      this.zoom(this.root);
    }
  }

  private goal(key: string): Frame | null | undefined {
    const siblings = this.current.parent?.children ?? [this.current];
    const position = siblings.indexOf(this.current);
    const goals: Record<string, () => Frame | null | undefined> = {
      ArrowUp: () => this.current.parent,
      ArrowDown: () => widestOf(this.current.children),
      ArrowLeft: () => siblings[position - 1],
      ArrowRight: () => siblings[position + 1],
      Home: () => widestOf(this.root.children),
    };
    const found = goals[key]?.();
    if (found === this.root) return undefined; // all together have no frame
    // What is above the focus, or beside it, is seen by going there.
    if (found && !found.ancestors().includes(this.focus)) this.focus = found.parent ?? this.root;
    return found;
  }
}

function layOut(table: TableData, metric: Column): Frame {
  const top: Place = { row: -1, children: [] };
  const around: Place[] = [top]; // of the next row, by depth
  table.depths.forEach((depth, row) => {
    const place: Place = { row, children: [] };
    around[depth]?.children.push(place);
    around.length = depth + 1;
    around.push(place);
  });
  // More can be freed than was allocated: a frame cannot be narrower than nothing.
  const summed = hierarchy(top).sum(({ row }) => Math.max(Number(metric.values[row] ?? 0), 0));
  return partition<Place>()(summed);
}

function widestOf(frames: Frame[] | undefined): Frame | undefined {
  return [...(frames ?? [])].sort((one, other) => (other.value ?? 0) - (one.value ?? 0))[0];
}

function inPercent(share: number): string {
  return `${(100 * share).toFixed(3)}%`;
}
