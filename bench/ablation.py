"""Trains configs/easy_vqa.yaml with AdamW and with the Muon and Sinkhorn mix at equal steps over some seeds, and compares them.

    .venv/bin/pip install matplotlib
    .venv/bin/python bench/ablation.py --steps 500 --seeds 1 2 3 --picture docs/ablation.png

A run that is already whole under --output is taken as it is. Prints a table in Markdown: exact match on the test split, validation loss and
time; --picture draws the training loss, mean over the seeds with their range, each smoothed over 20 steps.
"""

import argparse
import json
import pathlib
import subprocess

import matplotlib
import numpy

matplotlib.use("Agg")
import matplotlib.pyplot as plot  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(program, *arguments):
    subprocess.run([str(program), *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def train(folder, overrides, seed, options):
    """Losses of all steps, last validation loss, share of exact answers, seconds of training."""
    metrics = folder / "metrics.jsonl"
    if not (folder / "eval.json").exists():
        run(options.program, "train", ROOT / "configs/easy_vqa.yaml", "--ranks", 2, f"--train.output={folder}",
            f"--train.steps={options.steps}", f"--train.seed={seed}", f"--checkpoint.interval={options.steps}",
            "--validation.interval=100", "--validation.steps=32", *overrides)
        run(options.program, "eval", folder, "--split", "test", "--limit", options.questions)
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    evaluation = json.loads((folder / "eval.json").read_text())
    validation = [row["validation_metrics/loss"] for row in rows if "validation_metrics/loss" in row]
    return ([row["loss"] for row in rows], validation[-1], evaluation["exact_match"],
            sum(row["seconds"] for row in rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--adamw-lr", type=float, nargs="+", default=[5e-4, 1e-3])
    parser.add_argument("--questions", type=int, default=2000, help="of the test split; 0: all")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "runs/ablation")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/hyperparallel")
    parser.add_argument("--picture", type=pathlib.Path)
    options = parser.parse_args()

    variants = {"Muon + Sinkhorn": []}
    for lr in options.adamw_lr:
        variants[f"AdamW, lr {lr:g}"] = ["--optimizer.name=adamw", f"--optimizer.lr={lr}", f"--optimizer.schedule.min_lr={lr / 100}"]
    print(f"| {options.steps} steps | exact match by seed | mean | validation loss | seconds a step |\n|---|---|---|---|---|")
    _, axes = plot.subplots(figsize=(7, 4))
    for name, overrides in variants.items():
        results = []
        for seed in options.seeds:
            folder = options.output / f"{name.replace(' ', '_')}-{options.steps}-{seed}"
            results.append(train(folder, overrides, seed, options))
        matches = [result[2] for result in results]
        each = ", ".join(f"{100 * match:.1f}" for match in matches)
        seconds = numpy.mean([result[3] for result in results]) / options.steps
        print(f"| {name} | {each} | {100 * numpy.mean(matches):.1f} % | {numpy.mean([result[1] for result in results]):.3f} | "
              f"{seconds:.2f} |", flush=True)
        smooth = numpy.array([numpy.convolve(result[0], numpy.ones(20) / 20, mode="valid") for result in results])
        steps = numpy.arange(20, options.steps + 1)
        axes.plot(steps, smooth.mean(axis=0), label=name)
        axes.fill_between(steps, smooth.min(axis=0), smooth.max(axis=0), alpha=0.2)
    axes.set(xlabel="step", ylabel="training loss", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend()
    if options.picture:
        plot.tight_layout()
        plot.savefig(options.picture)


if __name__ == "__main__":
    main()
