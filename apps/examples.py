"""What stands below each command's --help."""

from __future__ import annotations


def _lines(*commands: str) -> str:
    return "\n".join((" Examples:", *(f"   {command}" for command in commands), ""))


EDGESPEC = (
    _lines(
        "edgespec chat",
        "edgespec chat Qwen/Qwen2.5-7B-Instruct --memory 4GB",
        "edgespec generate MODEL -p 'Once upon a time' --memory 8GB",
    )
    + """
 Each command's --help has its options. They can be set in the
 environment too, as EDGESPEC_MEMORY, and in edgespec.toml.
"""
)
CHAT = _lines(
    "edgespec chat",
    "edgespec chat Qwen/Qwen2.5-7B-Instruct --memory 4GB",
    "edgespec chat MODEL --continue",
    "cat report.txt | edgespec chat MODEL -p 'Sum this up.'",
    "edgespec chat --server http://127.0.0.1:8642",
)
GENERATE = _lines(
    "edgespec generate MODEL -p 'Once upon a time' --max-tokens 100",
    "edgespec generate MODEL --json --keep-going < prompts.jsonl",
    "edgespec generate MODEL --batch auto -o out.jsonl < prompts.jsonl",
)
SERVE = _lines(
    "edgespec serve MODEL --memory 8GB",
    "edgespec serve MODEL --max-sessions 8 --port 9000",
    "edgespec serve MODEL --host 0.0.0.0 --api-key-file keys.txt",
)
PACK = _lines(
    "edgespec pack MODEL -o packed --precision int8 --substitute int4",
    "edgespec pack --verify packed",
)
EXPORT = _lines(
    "edgespec export SMALL -o draft --precision int8",
    "edgespec chat MODEL --draft-model draft --schedule mirror",
)
BENCH = _lines(
    "edgespec bench MODEL --memory 8GB",
    "edgespec bench MODEL -p 512,2048 -n 0 -r 3 --json",
    "edgespec bench MODEL --memory 4GB,8GB --drafter none,ngram",
)
DEVICES = _lines(
    "edgespec devices /models",
    "edgespec devices --preset raspberry-pi-5",
)
TUNE = _lines(
    "edgespec tune Qwen/Qwen2.5-7B-Instruct --memory 4GB,6GB,8GB",
    "edgespec tune MODEL --preset raspberry-pi-5",
    "edgespec tune MODEL -i",
    "edgespec tune MODEL -o fast.toml && edgespec chat MODEL --profile fast.toml",
)
TRAIN = _lines(
    "edgespec train cascade MODEL --data texts/ --out adapters",
    "edgespec train moa MODEL --data texts/ --out adapters",
    "edgespec train eagle MODEL --data texts/ --out adapters",
    "edgespec train specformer MODEL --data texts/ --out adapters",
    "edgespec train streaming MODEL --data texts/ --out adapters",
    "edgespec train spd MODEL --data texts/ --out adapters",
    "edgespec train cascade --help",
)
EAGLE = _lines(
    "edgespec train eagle MODEL --data prompts/ --generate 5000 --out dir",
    "edgespec chat MODEL --adapters dir",
)
SPECFORMER = _lines(
    "edgespec train specformer MODEL --data prompts/ --generate 5000 --out dir",
    "edgespec chat MODEL --adapters dir",
)
STREAMING = _lines(
    "edgespec train streaming MODEL --data prompts/ --generate 5000 --out dir",
    "edgespec chat MODEL --drafter streaming --adapters dir --schedule mirror",
)
SPD = _lines(
    "edgespec train spd MODEL --data prompts/ --generate 5000 --tracks 8 --out dir",
    "edgespec chat MODEL --drafter spd --adapters dir --schedule mirror",
)
CASCADE = _lines(
    "edgespec train cascade MODEL --data text/ --out dir --memory 8GB",
    "edgespec chat MODEL --memory 8GB --adapters dir",
)
MOA = _lines(
    "edgespec train moa MODEL --data text/ --out dir --memory 8GB",
    "edgespec chat MODEL --memory 8GB --adapters dir",
)
