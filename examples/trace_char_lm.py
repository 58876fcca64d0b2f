"""Train the small language model of char_lm.py, and trace a step now and then.

Open the files in https://ui.perfetto.dev; they stay on your computer.
"""

import argparse

import torch
from char_lm import CharLM, Config, Vocabulary, batch_loss, read_corpus

from torchprof_hooks import ProfilerHook, TrainingSession


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-steps", type=int, default=100)
    parser.add_argument("--output-dir", default="traces")
    parser.add_argument("--memory", action="store_true", help="trace that, too")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    config = Config()
    device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
    text = read_corpus()
    vocabulary = Vocabulary(text)
    ids = vocabulary.encode(text).to(device)
    model = CharLM(config, len(vocabulary)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), config.max_learning_rate)

    def train_step() -> None:
        loss = batch_loss(model, ids, config)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    traces = ProfilerHook(
        args.save_steps, output_dir=args.output_dir, show_memory=args.memory
    )
    with TrainingSession([traces]) as session:
        for _ in range(args.steps):
            session.run(train_step)
    for path in traces.paths:
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
