"""Keys of a compared system."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from suite.config.base import Count, Name, Ranks, Settings, Text

ENGINE = "suite.engine.system.EngineSystem"


class System(Settings):
    """A compared system: its class, its name, and what it can do. Its class may read further keys."""

    model_config = ConfigDict(extra="allow")

    target: Annotated[Text, Field(alias="_target_")]
    """Class that each rank builds."""
    name: Name
    what: Text = ""
    """One line on the report's page."""
    paper: Text = ""
    """Paper that describes it."""
    budget: bool = False
    """Its memory is predicted by suite.memory."""
    microbatches: Annotated[Count | None, Field(examples=[None])] = None
    """Microbatches per replica and batch, where it allows no other number."""
    graphs: bool = False
    """It trains one whole graph."""
    ordered: bool | None = None
    """Its ranks run the schedule of the config; null: as the engine of the suite does."""
    streams: bool | None = None
    """It trains without draining between batches; null: as the engine of the suite does."""
    prunes: bool | None = None
    """It trains pruned networks; null: as the engine of the suite does."""
    resumes: bool | None = None
    """It writes checkpoints; null: as the engine of the suite does."""
    order: Annotated[Name | None, Field(examples=[None])] = None
    """Class of the schedule that the system brings; null: it runs the config's, or an order that is not known."""
    processes: Annotated[Ranks | None, Field(examples=[None])] = None
    """Processes, where it allows no other number."""
    fills: bool = False
    """Its order needs at least as many microbatches as stages."""
    tensor: bool = False
    """It can split layers: grid.tensor."""
    transformers: bool = False
    """It trains networks of transformer blocks and no others."""
    sparse: bool = False
    """Its products skip pruned weights."""
    asynchronous: bool = False
    """Its pipeline does not drain for an update."""
    bubble: Text | None = None
    """Formula of its idle time in `stages` and `microbatches`, which the law of closed forms checks; null: none."""

    @property
    def on_engine(self) -> bool:
        """Whether its ranks run the suite's engine itself, which has every capability below."""
        return self.target == ENGINE

    @property
    def runs_schedule(self) -> bool:
        """Whether its ranks run the schedule of the config."""
        return self.on_engine if self.ordered is None else self.ordered

    @property
    def can_stream(self) -> bool:
        """Whether it trains without draining between batches."""
        return self.on_engine if self.streams is None else self.streams

    @property
    def can_prune(self) -> bool:
        """Whether it trains pruned networks."""
        return self.on_engine if self.prunes is None else self.prunes

    @property
    def can_resume(self) -> bool:
        """Whether it writes checkpoints and continues from them."""
        return self.on_engine if self.resumes is None else self.resumes
