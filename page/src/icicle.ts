// The tree of calls as an icicle: below each frame lie those that it called.
import { hierarchy, partition, type HierarchyRectangularNode } from "d3-hierarchy";
import { select } from "d3-selection";
import type { TreeItem } from "./data";
import type { Metric } from "./metrics";
import { percent } from "./numbers";

interface Place {
  item: TreeItem;
  index: number;
  children: Place[];
}

export type Frame = HierarchyRectangularNode<Place>;

/** Pixels from one level to the next, as in the picture that Python makes. */
const LEVEL = 26;
/** The narrowest frame that is drawn, and that has a name, as shares of the width. */
const NARROWEST = 0.0007;
const NARROWEST_NAMED = 0.012;
/** Own shares from which on a frame is hotter; as in Python (static_icicle.py). */
const HEAT = [0.01, 0.03, 0.07, 0.15, 0.3];
/** Kinds that are cold, however long they take: they are nobody's, or the profiler's. */
const COLD = ["outside", "profiler", "unsampled"];

export interface Settings {
  items: TreeItem[];
  metric: Metric;
  /** The class that gives a frame its colour; by heat if there is none. */
  colour?: (item: TreeItem) => string;
}

export class Icicle {
  readonly root: Frame;
  private focus: Frame;
  private current: Frame;
  private readonly heat: Map<string, number>;
  private found = new Set<Frame>();
  private isSearching = false;

  constructor(
    private readonly svg: SVGSVGElement,
    private readonly settings: Settings,
    private readonly show: (frame: Frame) => void,
    private readonly zoomed: (frame: Frame) => void,
  ) {
    this.root = layOut(settings);
    this.focus = this.current = this.root;
    this.heat = heatByKind(this.root, settings.metric);
    svg.onkeydown = (event) => this.onKey(event);
    this.draw();
    show(this.root);
  }

  /** Have a frame, by its place in the tree, as wide as the picture. */
  zoom(frame: Frame): void {
    this.focus = this.current = frame;
    this.draw();
    this.show(frame);
    this.zoomed(frame);
  }

  /** The widest frame of a name, if it is in the picture. */
  widest(name: string): Frame | undefined {
    const named = this.root.descendants().filter((frame) => frame.data.item.name === name);
    return named.sort((one, other) => (other.value ?? 0) - (one.value ?? 0))[0];
  }

  /** Mark what has the text in its name or class. Returns how many there are, and what they take together. */
  search(text: string): { count: number; value: number } {
    const wanted = text.trim().toLowerCase();
    this.isSearching = wanted !== "";
    this.found = new Set(this.root.descendants().filter((frame) => this.isSearching && matches(frame, wanted)));
    this.draw();
    const outermost = [...this.found].filter((frame) => !frame.ancestors().slice(1).some((around) => this.found.has(around)));
    return { count: this.found.size, value: outermost.reduce((sum, frame) => sum + (frame.value ?? 0), 0) };
  }

  /** The widest of those that were found. */
  get best(): Frame | undefined {
    return [...this.found].sort((one, other) => (other.value ?? 0) - (one.value ?? 0))[0];
  }

  private draw(): void {
    const frames = this.visible();
    const lowest = Math.max(...frames.map((frame) => frame.depth));
    this.svg.setAttribute("height", String((lowest + 1) * LEVEL));
    const { x0, x1 } = this.focus;
    const place = (x: number): number => Math.min(Math.max((x - x0) / (x1 - x0 || 1), 0), 1);
    const hasFocus = this.svg.contains(document.activeElement);
    const drawn = select(this.svg)
      .selectAll<SVGSVGElement, Frame>("svg")
      .data(frames, (frame) => String(frame?.data.index))
      .join((enter) => {
        const added = enter.append("svg").attr("role", "treeitem").attr("height", LEVEL - 1);
        added.append("rect").attr("class", "body").attr("width", "100%").attr("height", "100%");
        added.append("rect").attr("class", "own").attr("y", LEVEL - 5).attr("height", 4);
        added.append("text").attr("x", 5).attr("y", 16);
        added.on("click", (_, frame) => this.zoom(frame));
        added.on("pointerenter", (_, frame) => this.show(frame));
        added.on("pointerleave", () => this.show(this.current));
        added.on("focus", (_, frame) => this.show(frame));
        return added;
      })
      .attr("class", (frame) => this.classOf(frame))
      .attr("x", (frame) => inPercent(place(frame.x0)))
      .attr("y", (frame) => frame.depth * LEVEL)
      .attr("width", (frame) => inPercent(place(frame.x1) - place(frame.x0)))
      .attr("aria-level", (frame) => frame.depth + 1)
      .attr("aria-label", (frame) => `${nameOf(frame)}, ${this.shareText(frame)}`)
      .attr("tabindex", (frame) => (frame === this.current ? 0 : -1))
      .order();
    drawn.select("rect.own").attr("width", (frame) => inPercent(this.own(frame) / (frame.value || 1)));
    drawn.select("text").text((frame) => (place(frame.x1) - place(frame.x0) < NARROWEST_NAMED ? "" : this.label(frame)));
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
    const { item } = frame.data;
    const colour = this.settings.colour?.(item) ?? `heat${this.level(item)}`;
    const classes = ["frame", frame === this.root ? "whole" : colour];
    if (this.focus.ancestors().slice(1).includes(frame)) classes.push("around");
    if (this.isSearching) classes.push(this.found.has(frame) ? "found" : "other");
    return classes.join(" ");
  }

  private level(item: TreeItem): number {
    const share = (this.heat.get(item.like) ?? 0) / (this.root.value || 1);
    return COLD.includes(item.kind) ? 0 : HEAT.filter((least) => share >= least).length;
  }

  private own(frame: Frame): number {
    return this.settings.metric.own(frame.data.item);
  }

  private shareText(frame: Frame): string {
    return `${percent(frame.value ?? 0, this.root.value ?? 0)} ${this.settings.metric.whole}`;
  }

  private label(frame: Frame): string {
    return `${shortName(frame)}  ${percent(frame.value ?? 0, this.root.value ?? 0)}`;
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
      Home: () => this.root,
    };
    const found = goals[key]?.();
    // What is above the focus, or beside it, is seen by going there.
    if (found && !found.ancestors().includes(this.focus)) this.focus = found.parent ?? found;
    return found;
  }
}

function layOut({ items, metric }: Settings): Frame {
  const places: Place[] = items.map((item, index) => ({ item, index, children: [] }));
  for (const place of places) places[place.item.parent]?.children.push(place);
  const summed = hierarchy(places[0] as Place).sum((place) => metric.own(place.item));
  return partition<Place>()(summed);
}

/** What layers of one kind take together: one of many would look cold by itself. */
function heatByKind(root: Frame, metric: Metric): Map<string, number> {
  const sums = new Map<string, number>();
  root.each(({ data: { item } }) => sums.set(item.like, (sums.get(item.like) ?? 0) + metric.own(item)));
  return sums;
}

function matches(frame: Frame, wanted: string): boolean {
  const { name, className } = frame.data.item;
  return name.toLowerCase().includes(wanted) || className.toLowerCase().includes(wanted);
}

function widestOf(frames: Frame[] | undefined): Frame | undefined {
  return [...(frames ?? [])].sort((one, other) => (other.value ?? 0) - (one.value ?? 0))[0];
}

function nameOf(frame: Frame): string {
  const { name, className, kind } = frame.data.item;
  if (!name) return "everything";
  return kind === "module" && className !== name ? `${name} (${className})` : name;
}

/** Without what the frame above shows already. */
function shortName(frame: Frame): string {
  const { name, className, kind } = frame.data.item;
  if (!name) return "everything";
  const around = `${frame.parent?.data.item.name ?? ""}.`;
  const short = name.startsWith(around) ? name.slice(around.length) : name;
  return kind === "module" && className !== short ? `${short}: ${className}` : short;
}

function inPercent(share: number): string {
  return `${(100 * share).toFixed(4)}%`;
}
