"""The stages of compiling that torch times, by torch's names, and how they nest.

torch does not record how they nest, only how long each call took. A stage that torch
times in several places (Inductor compiles backward graphs along with the forward, or
when they are first run) is listed beside the stages around it, and its time taken off
theirs. Only what has a fixed place in all of torch is here. Passes on a graph inside of
a graph (a branch of torch.cond) count for both, as torch times them; it is little.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class StageSource(NamedTuple):
    """How the time of a stage follows from torch's timings.

    timed, without: names of the timings that are added, and of those taken off.
    counted: names of the timings whose calls are counted, if not of all in `timed`.
    passes: prefix of the names of those timings that are further parts.
    """

    name: str
    timed: tuple[str, ...]
    parts: tuple[StageSource, ...] = ()
    without: tuple[str, ...] = ()
    counted: tuple[str, ...] = ()
    passes: str = ""

    @property
    def calls_of(self) -> tuple[str, ...]:
        return self.counted or self.timed


#: A whole compilation: of a function, and of a backward graph when it is first run.
COMPILATIONS: Final = ("_compile.compile_inner", "backward._backward_impl")

_FRAME, _BACKWARD = COMPILATIONS
_BACKEND: Final = "OutputGraph.call_user_compiler"
_INDUCTOR_GRAPHS: Final = ("compile_fx_inner", "AOTAutogradCache.inductor_load")


def _passes(kind: str, name: str) -> StageSource:
    return StageSource(
        f"{name} passes",
        (f"_recursive_{kind}_passes",),
        passes=f"pass.{kind}_passes.",
    )


_EARLY_PASSES: Final = _passes("pre_grad", "pre-grad"), _passes("joint_graph", "joint")
_INDUCTOR: Final = (*(each.timed[0] for each in _EARLY_PASSES), *_INDUCTOR_GRAPHS)

#: Together, these stages take all of the time of `COMPILATIONS`.
STAGES: Final = (
    StageSource(
        "Dynamo",
        (_FRAME,),
        (
            StageSource("tracing", ("bytecode_tracing",)),
            StageSource("building guards", ("build_guards",)),
            StageSource("garbage collection", ("gc",)),
        ),
        without=(_BACKEND,),
    ),
    StageSource(
        "AOTAutograd, backend",
        (_BACKEND, _BACKWARD),
        (
            StageSource("collecting metadata", ("aot_collect_metadata",)),
            StageSource("tracing the joint graph", ("aot_trace_joint_graph",)),
            StageSource("partitioning", ("min_cut_rematerialization_partition",)),
        ),
        without=_INDUCTOR,
    ),
    StageSource(
        "Inductor",
        _INDUCTOR,
        (
            *_EARLY_PASSES,
            _passes("post_grad", "post-grad"),
            StageSource("lowering", ("GraphLowering.run",)),
            StageSource(
                "generating code",
                ("GraphLowering.codegen",),
                (
                    StageSource(
                        "scheduling",
                        ("Scheduler.__init__",),
                        (StageSource("fusing", ("Scheduler.fused_nodes",)),),
                    ),
                    StageSource("kernels", ("Scheduler.codegen",)),
                    StageSource("wrapper", ("PythonWrapperCodegen.generate",)),
                ),
            ),
            StageSource(
                "loading compiled modules",
                ("PyCodeCache.load_by_key_path",),
                (StageSource("waiting for compilers", ("async_compile.wait",)),),
            ),
        ),
        counted=_INDUCTOR_GRAPHS,
    ),
)
