"""The public names, and where they are defined. At run time, `__init__.py` reads this
file, and imports each at its first use."""

from torchprof_hooks import function_hooks as function_hooks
from torchprof_hooks import link_hooks as link_hooks
from torchprof_hooks.class_profiler import profiled as profiled
from torchprof_hooks.comparison import Comparison as Comparison
from torchprof_hooks.comparison import compare as compare
from torchprof_hooks.documents.utilisation import Utilisation as Utilisation
from torchprof_hooks.function_hook import FunctionHook as FunctionHook
from torchprof_hooks.function_profiler import profile_function as profile_function
from torchprof_hooks.function_profiler import region as region
from torchprof_hooks.instruments.functions.call import FunctionCall as FunctionCall
from torchprof_hooks.kernel.callbacks import LinkCall as LinkCall
from torchprof_hooks.link_hook import LinkHook as LinkHook
from torchprof_hooks.profile_type import Profile as Profile
from torchprof_hooks.profiler import Profiler as Profiler
from torchprof_hooks.profiler import profile as profile
from torchprof_hooks.profiles.changes import Change as Change
from torchprof_hooks.profiles.changes import Together as Together
from torchprof_hooks.profiles.collectives import Collective as Collective
from torchprof_hooks.profiles.errors import FlagError as FlagError
from torchprof_hooks.profiles.errors import (
    MemoryUnavailableError as MemoryUnavailableError,
)
from torchprof_hooks.profiles.errors import ProfileFileError as ProfileFileError
from torchprof_hooks.profiles.errors import ProfilerError as ProfilerError
from torchprof_hooks.profiles.measured_steps import MeasuredSteps as MeasuredSteps
from torchprof_hooks.profiles.memory import GrowingMemory as GrowingMemory
from torchprof_hooks.profiles.memory import HeldMemory as HeldMemory
from torchprof_hooks.profiles.memory import MemoryFailure as MemoryFailure
from torchprof_hooks.profiles.memory import MemorySummary as MemorySummary
from torchprof_hooks.profiles.memory import MemoryTotals as MemoryTotals
from torchprof_hooks.profiles.memory_step import Checkpointing as Checkpointing
from torchprof_hooks.profiles.memory_step import MemoryPoint as MemoryPoint
from torchprof_hooks.profiles.memory_step import MemoryStep as MemoryStep
from torchprof_hooks.profiles.modules import ModuleInfo as ModuleInfo
from torchprof_hooks.profiles.parts import Part as Part
from torchprof_hooks.profiles.peak import Peak as Peak
from torchprof_hooks.profiles.program import Program as Program
from torchprof_hooks.profiles.provenance import Coordinate as Coordinate
from torchprof_hooks.profiles.provenance import Provenance as Provenance
from torchprof_hooks.profiles.ranks.inputs import RankInputs as RankInputs
from torchprof_hooks.profiles.ranks.rank import OwnTime as OwnTime
from torchprof_hooks.profiles.ranks.rank import Rank as Rank
from torchprof_hooks.profiles.ranks.ranks import StaleRank as StaleRank
from torchprof_hooks.profiles.ranks.skew import RankCollective as RankCollective
from torchprof_hooks.profiles.ranks.skew import SkewRow as SkewRow
from torchprof_hooks.profiles.ranks.verdict import Reason as Reason
from torchprof_hooks.profiles.ranks.verdict import Verdict as Verdict
from torchprof_hooks.profiles.rows import Row as Row
from torchprof_hooks.profiles.step_history import PhaseOfStep as PhaseOfStep
from torchprof_hooks.profiles.step_history import SlowStep as SlowStep
from torchprof_hooks.profiles.step_history import StepHistory as StepHistory
from torchprof_hooks.profiles.step_history import Stretch as Stretch
from torchprof_hooks.profiles.step_times import Bucket as Bucket
from torchprof_hooks.profiles.step_times import StepTimes as StepTimes
from torchprof_hooks.profiles.totals import Totals as Totals
from torchprof_hooks.profiles.trace.device_idle import IdleRow as IdleRow
from torchprof_hooks.profiles.trace.device_step import DeviceStep as DeviceStep
from torchprof_hooks.profiles.trace.device_step import DeviceUse as DeviceUse
from torchprof_hooks.profiles.trace.kernels import Kernel as Kernel
from torchprof_hooks.profiles.trace.kernels import KernelRow as KernelRow
from torchprof_hooks.profiles.tree import Node as Node
from torchprof_hooks.program.startup import enable as enable
from torchprof_hooks.ranks import Ranks as Ranks
from torchprof_hooks.ranks import load_ranks as load_ranks
from torchprof_hooks.registration import add_hook as add_hook
from torchprof_hooks.registration import delete_hook as delete_hook
from torchprof_hooks.session.profiler_hook import ProfilerHook as ProfilerHook
from torchprof_hooks.session.small_hooks import ReportHook as ReportHook
from torchprof_hooks.session.training_session import RunArgs as RunArgs
from torchprof_hooks.session.training_session import RunContext as RunContext
from torchprof_hooks.session.training_session import RunValues as RunValues
from torchprof_hooks.session.training_session import SessionHook as SessionHook
from torchprof_hooks.session.training_session import TrainingSession as TrainingSession
from torchprof_hooks.session.trigger_timer import SecondOrStepTimer as SecondOrStepTimer
from torchprof_hooks.version import __version__ as __version__

__all__: list[str]
