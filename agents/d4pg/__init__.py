"""D4PG: Distributed Distributional Deterministic Policy Gradients."""

from agents.d4pg.config import PAPER, RECURRENT, SIMBA, XQC, D4PGConfig, PixelD4PGConfig
from agents.runs.command import AgentCommand

command = AgentCommand(
    "d4pg",
    D4PGConfig,
    PixelD4PGConfig,
    "agents.d4pg.agent:D4PG",
    presets={"paper": PAPER, "recurrent": RECURRENT, "simba": SIMBA, "xqc": XQC},
)
