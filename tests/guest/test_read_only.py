# SPDX-License-Identifier: GPL-2.0-or-later
"""A /sys that cannot be written: what was to be set there is refused and said, flows are steered
nevertheless, and nothing of it counts as ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.applications import delivered
from tests.guest.settings import on_simnic, settings
from tests.guest.simlab import NAME, sh
from tests.wait import until

__all__: list[str] = []


@contextmanager
def read_only() -> Iterator[None]:
    """Every mount of this network namespace's sysfs."""
    sh("mount", "-o", "remount,ro", "/sys")
    try:
        yield
    finally:
        sh("mount", "-o", "remount,rw", "/sys")


def test_what_is_refused_is_said_and_the_rest_is_done(tmp_path: Path) -> None:
    with on_simnic(tmp_path, queues=4, table=64) as bed:
        before = settings(bed)

        def changed() -> set[str]:
            return {
                Path(file).name for file, value in settings(bed).items() if value != before[file]
            }

        with read_only():
            bed.start()
            app = bed.apps.tcp()
            bed.steered(app)
            delivered(bed.meter, app)
            app.migrate()
            bed.steered(app)
            delivered(bed.meter, app)
            assert changed() == {"smp_affinity_list"}
            refused = bed.daemon.events("refused")
            assert {row["errno"] for row in refused} == {"EROFS"}
            assert all(row["what"].startswith("xps-cpus:") for row in refused)
        bed.daemon.order("disarm", NAME)
        bed.daemon.order("arm", NAME)
        until(lambda: changed() == {"smp_affinity_list", "xps_cpus"}, "it is set")
        bed.steered(app)
        assert bed.daemon.end() == 0
        assert bed.daemon.restore().returncode == 0
        assert changed() == set()
