"""What counts as memory that a program may write, and programs whose libraries lie where managed memory would."""

from cases import swapped_out
from common import FARPAGE, check
from context import test
from semantics_test import failures, program

UNMANAGED = "runs without a memory budget: its libraries lie where managed memory would"


@test("counted", ("quick", "soak", "user"))
def counted(context):
    """A program that made 1 MiB read-only and writable again and again became managed: each time it counted anew. What was reserved and given
    back counted for less than nothing."""
    got = context.budget_run(512, [program("counted"), 256], timeout_s=60)
    check(got.code == 0, failures(got))


@test("legacy-layout", ("quick", "soak", "user"), per_delivery=True)
def legacy_layout(context):
    """Who asks for the legacy layout of addresses is started in the normal one, and managed."""
    got = context.budget_run(32, [program("layout"), 64, "libc"], timeout_s=60)
    check(got.code == 0 and "ok layout" in got.out, failures(got))
    check(not got.err and swapped_out(got.stats) > 0, f"not managed: {got.err[-200:]}")


@test("legacy-layout-unseen", ("quick", "soak", "user"))
def legacy_layout_unseen(context):
    """One that becomes another program past libc gets that layout, says so, and is not managed: it was ended at its first thread."""
    got = context.plain([FARPAGE, "run", "--ram", "128M", "--", program("layout"), 16, "raw"], timeout_s=60)
    check(got.code == 0 and "ok layout" in got.out, failures(got))
    check(UNMANAGED in got.err and "sysctl vm.legacy_va_layout=0" in got.err, f"said nothing: {got.err[-200:]}")
