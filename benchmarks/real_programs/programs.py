"""Which programs are run, with what, and what of their output is their own clock."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

SCRIPTS: Final = Path(__file__).parent / "scripts"


@dataclass(frozen=True, slots=True)
class Program:
    """How to run one.

    script: in the checkout of torch's examples, or among ours.
    needs: packages without which it is left out.
    ends_after: seconds after which it is interrupted, of those that run for long.
    clocks: patterns of what it prints of its own times, besides `CLOCKS`.
    draws_unseeded: whether it draws from Python's random numbers without a seed; the
        interpreter is given one.
    """

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    ends_after: float | None = None
    clocks: tuple[str, ...] = ()
    draws_unseeded: bool = False

    @property
    def is_example(self) -> bool:
        """Whether it is one of torch's examples, not of ours."""
        return "/" in self.script

    def path(self, examples: Path | None) -> Path | None:
        """Where its script is; None if it is not there."""
        if not self.is_example:
            return SCRIPTS / self.script
        path = None if examples is None else examples / self.script
        return path if path is not None and path.exists() else None

    def missing(self, examples: Path | None) -> str:
        """Why it cannot be run; empty if it can."""
        absent = [name for name in self.needs if find_spec(name) is None]
        if absent:
            return f"{', '.join(absent)} not installed"
        return "" if self.path(examples) else "no checkout of torch's examples"


#: What programs print of clocks: figures before or behind a word for time.
CLOCKS: Final = (
    r"\d+\.\d+ms|\d+\.\d+s\b|\d+:\d\d(:\d\d)?",
    r"ms/batch +\d+\.\d+",
    r"time: +\d+\.\d+s",
    r"(?i)(time|data|fps|runtime|per_second|elapsed)['\" _a-z|:]*\s*\d+(\.\d+)?"
    r"( *\( *\d+\.\d+\))?",
)

PROGRAMS: Final = (
    Program("mnist", "mnist/main.py", ("--epochs=1",), ("torchvision",)),
    Program("vae", "vae/main.py", ("--epochs=2",), ("torchvision",)),
    Program(
        "word language model, LSTM",
        "word_language_model/main.py",
        ("--data=text", "--epochs=1", "--log-interval=20", "--save=lstm.pt"),
    ),
    Program(
        "word language model, Transformer",
        "word_language_model/main.py",
        (
            "--data=text",
            "--epochs=1",
            "--log-interval=20",
            "--save=transformer.pt",
            "--model=Transformer",
            "--lr=5",
        ),
    ),
    Program(
        "reinforce",
        "reinforcement_learning/reinforce.py",
        (),
        ("gymnasium",),
        ends_after=30,
    ),
    Program(
        "actor critic",
        "reinforcement_learning/actor_critic.py",
        (),
        ("gymnasium",),
        ends_after=30,
    ),
    Program(
        "dcgan",
        "dcgan/main.py",
        (
            "--dataset=fake",
            "--imageSize=64",
            "--ngf=16",
            "--ndf=16",
            "--niter=1",
            "--manualSeed=1",
            "--workers=0",
        ),
        ("torchvision",),
    ),
    Program(
        "siamese",
        "siamese_network/main.py",
        ("--epochs=1",),
        ("torchvision",),
        draws_unseeded=True,
    ),
    Program(
        "imagenet --dummy",
        "imagenet/main.py",
        ("--dummy", "--seed=1", "--workers=2", "--batch-size=8", "--print-freq=1"),
        ("torchvision",),
        ends_after=45,
    ),
    Program("GPT, 40 micro-batches a step", "gpt_accumulation.py"),
    Program("peft", "peft_lora.py", (), ("peft", "transformers")),
    Program("diffusers", "diffusers_unet.py", (), ("diffusers",)),
    Program("timm", "timm_classifier.py", (), ("timm",)),
    Program("torchvision detection", "detection.py", (), ("torchvision",)),
    Program("torch_geometric", "graph_network.py", (), ("torch_geometric",)),
    Program("stable-baselines3", "baselines_ppo.py", (), ("stable_baselines3",)),
    Program("Keras on torch", "keras_fit.py", (), ("keras",)),
    Program("fastai", "fastai_fit.py", (), ("fastai",)),
    Program("fastai, tiny modules", "fastai_fit.py", ("tiny",), ("fastai",)),
    Program("Lightning", "lightning_fit.py", (), ("pytorch_lightning",)),
    Program("Trainer", "trainer_fit.py", (), ("transformers", "accelerate")),
)
