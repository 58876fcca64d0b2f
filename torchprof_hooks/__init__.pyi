"""The public names, and where they are defined. At run time, `__init__.py` reads this
file, and imports each at its first use."""

from torchprof_hooks import function_hooks as function_hooks
from torchprof_hooks import link_hooks as link_hooks
from torchprof_hooks.class_profiler import profiled as profiled
from torchprof_hooks.comparison import Comparison as Comparison
from torchprof_hooks.comparison import compare as compare
from torchprof_hooks.function_hook import FunctionHook as FunctionHook
from torchprof_hooks.function_profiler import profile_function as profile_function
from torchprof_hooks.function_profiler import region as region
from torchprof_hooks.instruments.functions.call import FunctionCall as FunctionCall
from torchprof_hooks.kernel.callbacks import LinkCall as LinkCall
from torchprof_hooks.link_hook import LinkHook as LinkHook
from torchprof_hooks.profile_type import Profile as Profile
from torchprof_hooks.profiler import Profiler as Profiler
from torchprof_hooks.profiler import profile as profile
from torchprof_hooks.profiles.errors import FlagError as FlagError
from torchprof_hooks.profiles.errors import (
    MemoryUnavailableError as MemoryUnavailableError,
)
from torchprof_hooks.profiles.errors import ProfileFileError as ProfileFileError
from torchprof_hooks.profiles.errors import ProfilerError as ProfilerError
from torchprof_hooks.program.startup import enable as enable
from torchprof_hooks.ranks import Ranks as Ranks
from torchprof_hooks.ranks import load_ranks as load_ranks
from torchprof_hooks.registration import add_hook as add_hook
from torchprof_hooks.registration import delete_hook as delete_hook
from torchprof_hooks.session.profiler_hook import ProfilerHook as ProfilerHook
from torchprof_hooks.session.training_session import RunArgs as RunArgs
from torchprof_hooks.session.training_session import RunContext as RunContext
from torchprof_hooks.session.training_session import RunValues as RunValues
from torchprof_hooks.session.training_session import SessionHook as SessionHook
from torchprof_hooks.session.training_session import TrainingSession as TrainingSession
from torchprof_hooks.session.trigger_timer import SecondOrStepTimer as SecondOrStepTimer
from torchprof_hooks.version import __version__ as __version__

__all__: list[str]
