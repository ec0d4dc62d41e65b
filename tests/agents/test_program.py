"""The wiring of agents."""

from unittest import mock

import launchpad as lp
from agents import program
from launchpad.rpc import server
from tests.agents.nodes.plans import make_plan


def test_servers_remember_calls_for_longer_than_they_are_sent_again():
    assert program._PATIENT["courier_client_kwargs"]["retry_secs"] < server.KEEP_SECS


def test_cached_weights_do_not_go_stale_before_the_next_ones_have_come(monkeypatch, tmp_path):
    """Caches once asked the learner up to twice as often as the documentation says."""
    make = mock.Mock(wraps=lp.CacherNode)
    monkeypatch.setattr(lp, "CacherNode", make)
    program.make_program(mock.Mock(), make_plan(tmp_path, 100, num_caches=1))
    ((_, refresh_ms, stale_ms),) = [call.args for call in make.call_args_list]
    assert (refresh_ms, stale_ms) == (200, 400)  # Five times per second.
