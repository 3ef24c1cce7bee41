"""--readahead: the right data under every policy, and books that fit what the policy is."""

import json

from common import FARPAGE, check
from context import REGISTRY, Test, refusing, test
from semantics_test import failures, program
from stress_test import stress

IO_SETUP = 206
# The greatest window in pages: of none, of the kernel's two (page_cluster 3), of our own.
LARGEST = {"none": 0, "cluster": 8, "vma": 8, "adaptive": 1024}


@test("readahead", per_delivery=True, grows=True)
def readahead(context):
    mib, budget = (512, 128) if context.soak else (64, 24)
    for policy, largest in LARGEST.items():
        got = context.budget_run(budget, [program("fill"), mib, 1], timeout_s=300, extra=["--readahead", policy])
        check(got.code == 0, f"{policy}: {failures(got)}")
        ahead, hits = got.stats["swap_ra"], got.stats["swap_ra_hit"]
        windows = {2**i: count for i, count in enumerate(got.stats["readahead_windows"]) if count}
        check(hits <= ahead, f"{policy}: {hits} hits of {ahead} pages read ahead")
        check((ahead > 0) == (largest > 0), f"{policy}: {ahead} pages read ahead")
        check(max(windows, default=0) <= largest, f"{policy}: windows {windows}")
        # One mapping has nearly all of it.
        regions = got.stats["readahead_regions"]
        check(sum(region["swap_ra"] for region in regions) <= ahead, f"{policy}: {regions} of {ahead}")
        check(bool(regions) == (ahead > 0), f"{policy}: {regions}")
        for region in regions[:1]:
            check(region["swap_ra"] > 0.9 * ahead, f"{policy}: {region} of {ahead}")
            share = region["swap_ra_hit"] / region["swap_ra"]
            check(abs(share - hits / ahead) < 0.1, f"{policy}: {region}, {hits} hits of {ahead}")
            check(region["size_bytes"] >= mib << 20, f"{policy}: {region}")
        # `fill` reads half of its pages in order, the rest in runs of 16 pages.
        check(largest == 0 or hits > ahead / 3, f"{policy}: {hits} hits of {ahead} pages read ahead")


@test("pace", per_delivery=True)
def pace(context):
    """What reads take is measured while a program faults at random, and a disk is not called rotating for what it says of itself."""
    work = [FARPAGE, "bench-work", "random", "--bytes", "96M", "--ram", "24M", "--seconds", "1"]
    got = context.budget_run(32, work, timeout_s=120, extra=["--swap", f"{context.directory}:512M"])
    check(got.code == 0, failures(got))
    [area] = got.stats["areas"]
    check(0 < area["read_own_ns"] <= area["read_median_ns"], f"{area}")
    check(4 <= area["prefetch_depth"] <= 64 and area["read_seek_ns"] > 0, f"{area}")
    check(not area["dear_seeks"] or area["read_seek_ns"] >= 2_000_000, f"{area}")


@test("page-cluster", ("soak",), per_delivery=True)
def page_cluster(context):
    """--page-cluster N: no window of the kernel's policies is greater than 2^N pages, and a stream's come to be that great."""
    for policy, orders in (("cluster", (0, 1, 4)), ("vma", (0, 2, 5))):
        for order in orders:
            extra = ["--readahead", policy, "--page-cluster", order]
            got = context.budget_run(24, [program("fill"), 64, 1], timeout_s=300, extra=extra)
            check(got.code == 0, f"{extra}: {failures(got)}")
            windows = {2**i: count for i, count in enumerate(got.stats["readahead_windows"]) if count}
            check(max(windows, default=1) == 1 << order, f"{extra}: windows {windows}")
            check((got.stats["swap_ra"] > 0) == (order > 0), f"{extra}: {got.stats['swap_ra']} pages read ahead")
    for words in (["--page-cluster", 3], ["--readahead", "vma", "--page-cluster", 6]):
        got = context.plain([FARPAGE, "run", "--ram", "64M", *words, "--", "true"])
        check(got.code == 125 and len(got.err_lines()) == 1 and "--page-cluster" in got.err, f"{words}: {got.code}: {got.err}")


@test("readahead-sequence", ("quick", "soak"), per_delivery=True, grows=True)
def sequence(context):
    """What is rewritten in order is read and written in rows. (Walks in steps of seven pages, which the program makes through a table of its own, went
    on into the sequence, so that a sixth of it to half was read page by page: 22 to 96 KiB at once. Now it is 89 to 179.)"""
    mib, budget = (1024, 256) if context.soak else (256, 64)
    work = [FARPAGE, "bench-work", "seq", "--bytes", f"{mib}M", "--ram", f"{budget}M"]
    got = context.budget_run(budget, work, timeout_s=300, extra=["--swap", f"{context.directory}:2G"])
    check(got.code == 0, failures(got))
    for way, least_kib in (("read", 32), ("write", 128)):
        count, size = got.stats[f"file_{way}"], got.stats[f"file_{way}_bytes"]
        check(size > mib << 20, f"{way}: {size} bytes")
        check(size / count > least_kib * 1024, f"{size / count / 1024:.0f} KiB at once ({way})")


for _policy in ("none", "cluster", "vma"):
    _run = stress((32, 4, 2, 0), 6, ["--readahead", _policy])
    REGISTRY.append(Test(f"stress-readahead-{_policy}", _run, ("soak",), True))


@test("readahead-columns", ("quick", "soak"), per_delivery=True, grows=True)
def columns(context):
    """Columns of a matrix: many reads in flight together, and one after the other where the kernel refuses that."""
    mib, budget = (512, 128) if context.soak else (96, 32)
    work = [FARPAGE, "bench-work", "stride", "--bytes", f"{mib}M", "--ram", f"{budget}M"]
    for before in ([], refusing(IO_SETUP)):
        got = context.budget_run(budget, [*before, *work], timeout_s=300)
        check(got.code == 0, f"{before}: {failures(got)}")
        figures = json.loads(got.out)
        check(figures["wrong"] == 0 and figures["checked"] >= 3 * figures["pages"], f"{before}: {figures}")
        check(got.stats["swap_ra"] > figures["pages"], f"{before}: {got.stats['swap_ra']} pages read ahead")


@test("readahead-recall", ("quick", "soak"), per_delivery=True, grows=True)
def recall(context):
    """A list that is followed again and again in no order of addresses: after the first time its pages come ahead of their touch."""
    mib, budget, rounds = (320, 128, 4) if context.soak else (80, 32, 4)
    work = [FARPAGE, "bench-work", "chase", "--bytes", f"{mib}M", "--ram", f"{budget}M"]
    got = context.budget_run(budget, work, timeout_s=600, extra=["--swap", f"{context.directory}:1G"])
    check(got.code == 0, failures(got))
    figures = json.loads(got.out)
    pages, ahead, hits = mib * 256, got.stats["swap_ra"], got.stats["swap_ra_hit"]
    check(figures["wrong"] == 0 and figures["checked"] == rounds * pages, f"{figures}")
    check(ahead > pages // 2, f"{ahead} pages read ahead, {rounds} rounds over {pages}")
    check(hits > 0.8 * ahead, f"{hits} hits of {ahead} pages read ahead")
