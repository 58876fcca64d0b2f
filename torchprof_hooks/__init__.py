"""Where does the time of a PyTorch program go, per module, forward and backward?"""

from torchprof_hooks import function_hooks, link_hooks
from torchprof_hooks.capture.function_call import FunctionCall
from torchprof_hooks.capture.link_call import LinkCall
from torchprof_hooks.class_profiler import profiled
from torchprof_hooks.function_hook import FunctionHook
from torchprof_hooks.link_hook import LinkHook
from torchprof_hooks.profiler import Profiler, profile
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.registration import add_hook, delete_hook
from torchprof_hooks.version import __version__

__all__ = [
    "FunctionCall",
    "FunctionHook",
    "LinkCall",
    "LinkHook",
    "Profile",
    "Profiler",
    "__version__",
    "add_hook",
    "delete_hook",
    "function_hooks",
    "link_hooks",
    "profile",
    "profiled",
]
