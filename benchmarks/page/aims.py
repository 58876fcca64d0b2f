"""What the benchmarks are to show, and whether they do."""

from __future__ import annotations

import operator
from typing import Final

import results

from page.aim import AT_LEAST, Aim, Figures, Values, each, growth, one, worst

OURS: Final = "torchprof_hooks profile()"


def _slower_than_torch_profiler(figures: Figures) -> Values:
    found = figures["gpt2_with_table"]
    return {"": found["timer_and_summary"] / found["torch_profiler_and_averages"]}


def _kept_kib(figures: Figures) -> Values:
    """Of the tool that keeps most."""
    kept = {
        name: float(max(found.values()))
        for name, found in figures["calls"].items()
        if name != "bare"
    }
    name = max(kept, key=lambda name: kept[name])
    return {name: kept[name]}


def _entering_us(figures: Figures) -> Values:
    return dict(figures["enter_us"])


def _importing_ms(figures: Figures) -> Values:
    return {
        "the package": figures["import_ms"],
        "with the first profile()": figures["first_use_ms"],
    }


def _inactive(figures: Figures) -> Values:
    return {"": figures["call_inactive_ns"] / figures["call_without_ns"]}


def _right(figures: Figures) -> Values:
    found = figures["tools"][OURS]
    return {
        phase: 100 * found[f"{phase}_right"] / found["cases"]
        for phase in ("forward", "backward")
    }


def _attributed(figures: Figures) -> Values:
    return {
        f"{phase}, {name}": value
        for phase in ("forward", "backward")
        for name, value in _in_percent(worst(phase, min)(figures)).items()
    }


def _in_percent(shares: Values) -> Values:
    return {name: 100 * share for name, share in shares.items()}


def _kineto_errors(figures: Figures) -> Values:
    return {
        f"{phase}, {name}": value
        for phase in ("forward", "backward")
        for name, value in worst(f"{phase}_median_error", max)(
            figures["kineto"]
        ).items()
    }


STEPS: Final = ("linear", "relu", "gpt2")

AIMS: Final = (
    Aim(
        "a TimerHook costs at most 1.3 times an empty pre + post hook pair per module "
        "call",
        "forward",
        one("TimerHook", "ratio_to_empty"),
        1.3,
    ),
    Aim(
        "`profile()` costs at most 9 us per module and step",
        "step",
        each("us_per_module", *STEPS),
        9,
        show="{:.1f}",
    ),
    Aim(
        "... and at most 0.2 of what empty full backward hooks cost",
        "step",
        each("of_full_backward_hooks", *STEPS),
        0.2,
    ),
    Aim(
        "... and the small GPT-2 step takes at most 1.10 times the bare one",
        "step",
        one("gpt2", "ratio"),
        1.10,
        show="{:.3f}",
    ),
    Aim(
        "planted work is booked where it is, in all cases",
        "accuracy",
        _right,
        100,
        AT_LEAST,
        "{:.0f} %",
    ),
    Aim(
        "own times are at most 2 % off those of Kineto, in the median of the modules",
        "accuracy",
        _kineto_errors,
        2,
        show="{:.1f} %",
    ),
    Aim(
        "at least 98 % of forward and of backward are attributed, in the model with "
        "the smallest share",
        "coverage",
        _attributed,
        98,
        AT_LEAST,
        "{:.1f} %",
    ),
    Aim(
        "a module costs at most 1.5 times as much in a model of 10 000 as in one of "
        "100",
        "scaling",
        growth("modules", "10000", "100"),
        1.5,
    ),
    Aim(
        "... and at a depth of 200 as at a depth of 1",
        "scaling",
        growth("nesting", "200", "1"),
        1.5,
    ),
    Aim(
        "... and in 8 threads (time on the processor) as in 1",
        "scaling",
        growth("threads", "8", "1", "added_cpu_us"),
        1.5,
    ),
    Aim(
        "a report of 10^6 calls takes at most 1.5 times as long as one of 1000",
        "scaling",
        growth("report_by_calls", "1000000", "1000", "print_report_ms"),
        1.5,
    ),
    Aim(
        "... and its file at most 1.5 times as many bytes",
        "scaling",
        growth("report_by_calls", "1000000", "1000", "file_bytes"),
        1.5,
    ),
    Aim(
        "10^6 steps with `profile()` add less than 100 KiB",
        "memory",
        one("steps_kib"),
        100,
        operator.lt,
        "{:.0f} KiB",
    ),
    Aim(
        "10^6 module calls (and function calls) after warm-up add less than 1 MiB",
        "memory",
        _kept_kib,
        1024,
        operator.lt,
        "{:.0f} KiB",
    ),
    Aim(
        "a function TimerHook adds at most 1.5 times what an empty mode and empty node "
        "pre-hooks add",
        "functions",
        each("timer_of_empty_hooks", "relu", "gpt2"),
        1.5,
    ),
    Aim(
        "... and the GPT-2 step with it and its table takes at most as long as with "
        "`torch.profiler` and its table",
        "functions",
        _slower_than_torch_profiler,
        1,
        show="{:.2f} of it",
    ),
    Aim(
        "the memory hook on the CPU costs less than 2 us per function more than the "
        "timer",
        "functions",
        each("memory_more_than_timer_us", "relu", "gpt2"),
        2,
        operator.lt,
        "{:.1f}",
    ),
    Aim(
        "a step that `ProfilerHook` traces takes at most 1.15 times as long as with "
        "`torch.profiler` and its export",
        "trace",
        one("step", "ratio_to_torch"),
        1.15,
    ),
    Aim(
        "... and a loop of which every 100th step is traced takes at most 1.02 times "
        "the bare one",
        "trace",
        lambda figures: {"": figures["loop"]["ProfilerHook"]},
        1.02,
        show="{:.3f}",
    ),
    Aim(
        "... and a trace is at most 1.6 times as large as that of `torch.profiler`",
        "trace",
        one("step", "size_to_torch"),
        1.6,
    ),
    Aim(
        "a loop of which one step in a hundred is measured takes at most 1.005 times "
        "the bare one",
        "some_steps",
        lambda figures: {
            name: found["profile(every=100, steps=1)"]["ratio"]
            for name, found in figures.items()
        },
        1.005,
        show="{:.3f}",
    ),
    Aim(
        "entering and leaving a hook takes under 50 us",
        "startup",
        _entering_us,
        50,
        operator.lt,
        "{:.0f} us",
    ),
    Aim(
        "importing adds less than 30 ms to importing torch",
        "startup",
        _importing_ms,
        30,
        operator.lt,
        "{:.1f} ms",
    ),
    Aim(
        "a call without an active hook takes at most 1.02 times what it takes without "
        "the package",
        "startup",
        _inactive,
        1.02,
        show="{:.3f}",
    ),
)


def aims_table() -> results.Table:
    """All aims, with the newest results."""
    rows = [aim.row(results.figures(aim.file)) for aim in AIMS]
    return results.Table("", ["aim", "measured", ""], rows)
