"""Short runs in an environment with discrete actions that refuses illegal ones."""

from agents.nodes.run_plan import EvaluationSchedule
from agents.runs.options import AgentOptions

BUTTONS = "tests.environments.discrete_fakes:make_buttons"


def options(run_dir, agent, **changes):
    settings = {
        "env": BUTTONS,
        "steps": 300,
        "run_dir": run_dir,
        "agent": agent,
        "video": False,
        "evaluation": EvaluationSchedule(every=150, episodes=2, last_episodes=2),
    }
    return AgentOptions(**(settings | changes))
