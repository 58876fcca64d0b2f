"""Where does the time of a PyTorch program go, per module, forward and backward?"""

from torchprof_hooks import link_hooks
from torchprof_hooks.capture.link_call import LinkCall
from torchprof_hooks.class_profiler import profiled
from torchprof_hooks.link_hook import LinkHook, add_hook, delete_hook
from torchprof_hooks.profiler import Profiler, profile
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.version import __version__

__all__ = [
    "LinkCall",
    "LinkHook",
    "Profile",
    "Profiler",
    "__version__",
    "add_hook",
    "delete_hook",
    "link_hooks",
    "profile",
    "profiled",
]
