"""After `make test`: fails if a test, or a part of one, was skipped that expected-skips.txt does not name."""

import json
import sys

from common import BUILD, ROOT, results_of


def main():
    lines = (ROOT / "tests/real/expected-skips.txt").read_text().splitlines()
    expected = {line.split("#")[0].strip() for line in lines} - {""}
    skipped = list(json.loads((BUILD / "unit.json").read_text())["skipped"])
    for suite in ("quick", "user"):
        results = json.loads(results_of(suite).read_text())["results"]
        skipped += [result["name"] for result in results if result["verdict"] == "SKIP"]
        skipped += [part for result in results for part, _ in result["skipped"]]
    surprising = sorted(set(skipped) - expected)
    for name in surprising:
        print(f"skipped, and not in tests/real/expected-skips.txt: {name}")
    return 1 if surprising else 0


if __name__ == "__main__":
    sys.exit(main())
