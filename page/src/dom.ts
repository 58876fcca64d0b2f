// Small things of the page, made of text alone: nothing from a profile is ever markup.

export function find<E extends Element = HTMLElement>(selector: string): E | null {
  return document.querySelector<E>(selector);
}

type Attributes = Record<string, string | boolean | EventListener>;

export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...content: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (typeof value === "boolean") element.toggleAttribute(name, value);
    else element.setAttribute(name, value);
  }
  element.append(...content);
  return element;
}

/** An element of a picture. */
export function shape(tag: string, attributes: Record<string, string | number>, ...content: (Node | string)[]): SVGElement {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag) as SVGElement;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...content);
  return element;
}

/** A group of buttons of which one is pressed. */
export function choice(
  label: string,
  options: { id: string; title: string }[],
  chosen: string,
  choose: (id: string) => void,
): HTMLElement {
  const group = make("div", { class: "choice", role: "group", "aria-label": label });
  const buttons = options.map(({ id, title }) =>
    make(
      "button",
      {
        type: "button",
        "data-choice": id,
        "aria-pressed": String(id === chosen),
        click: () => {
          for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.choice === id));
          choose(id);
        },
      },
      title,
    ),
  );
  group.append(...buttons);
  return group;
}
