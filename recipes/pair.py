"""``python -m recipes.pair``: the embedded pair, from step 0, with all that lies beside it, by one command.

Every part goes on where a killed run was saved and is left alone once it is written, so the command may be started
again as often as need be: hours on two cores. The seeds are fixed: the same kind of processor, with as many threads and
the same versions, gives the same bits.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

MODEL = "{python} -m recipes.train --role {part} --out {out}/{part} --work {work} --batch 4096"
LEARNED = (
    "{python} -m draftwood train {part} --target {out}/target --data {work}/texts.jsonl --out {out}/target/{kind} "
    "--batch 8 --rate 3e-3 --distill 1"
)


@dataclass(frozen=True)
class PairPart:
    """A file of the pair, and the command that makes it; ``kind`` is the directory that it lies in.

    Where no file is named the command is always run: it knows itself what is left to do.
    """

    part: str
    made: str
    command: str
    kind: str = ""


PLAN = (
    PairPart(
        "target",
        "target/model.safetensors",
        f"{MODEL} --rate 3e-3 --steps 4500 --decay-from 3000 --opening 700 1000 --closing-from 3500 --rows 60000 "
        "--long-rows 20000",
    ),
    PairPart(
        "draft",
        "draft/model.safetensors",
        f"{MODEL} --rate 4e-3 --steps 2100 --decay-from 1500 --opening 900 1250 --closing-from 1850 --rows 18000 "
        "--long-rows 5000",
    ),
    PairPart(
        "texts",  # of the target and given ones
        "",
        "{python} -m draftwood train corpus --target {out}/target --given corpus --count 20000 "
        "--out {work}/texts.jsonl",
    ),
    PairPart(
        "eesd",
        "target/exit/exit.safetensors",
        f"{LEARNED} --layers 1 --steps 1500 --warmup 25 --rows 6000 --precision float32",
        "exit",
    ),
    PairPart("medusa", "target/heads/heads.safetensors", f"{LEARNED} --steps 480 --warmup 48", "heads"),
    PairPart(
        "eagle",
        "target/eagle/eagle.safetensors",
        f"{LEARNED} --steps 700 --warmup 50 --unroll 4 --rows 5600 --precision float32",
        "eagle",
    ),
    PairPart(
        "skip",
        "target/skip/skip.safetensors",
        "{python} -m draftwood tune skip --target {out}/target --out {out}/target/skip/skip.safetensors "
        "--temperature 1 --budget 200",
    ),
    PairPart("figures", "pair.json", "{python} -m recipes.evaluate --pair {out} --out {out}/pair.json"),
)


def command(part: PairPart, out: Path, work: Path) -> list[str]:
    """The words of a part's command."""
    places = {"python": sys.executable, "out": str(out), "work": str(work), "part": part.part, "kind": part.kind}
    return [word.format(**places) for word in shlex.split(part.command)]


def main(arguments: list[str] | None = None) -> int:
    """Make what is not there yet; the exit status of the first command that fails, else 0."""
    options = argparse.ArgumentParser(prog="python -m recipes.pair", description=__doc__)
    options.add_argument("--out", type=Path, required=True, help="directory of the pair")
    options.add_argument("--work", type=Path, required=True, help="tokenised corpus and saved runs")
    given = options.parse_args(arguments)
    for number, part in enumerate(PLAN, 1):
        done = bool(part.made) and (given.out / part.made).exists()
        print(f"{number} of {len(PLAN)}, {part.part}: {'is there' if done else part.made or 'goes on'}", flush=True)
        if not done:
            (given.out / part.made).parent.mkdir(parents=True, exist_ok=True)
            status = subprocess.run(command(part, given.out, given.work), check=False).returncode
            if status:
                print(f"{part.part} ended with status {status}; start this command again to go on", file=sys.stderr)
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
