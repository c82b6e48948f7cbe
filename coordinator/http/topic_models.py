"""Bodies and answers of the routes about topics."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from coordinator.core.catalog.decisions import compact
from coordinator.core.history.predicates import (
    FIELDS,
    NUMBER_MAX,
    TEXT_LENGTH_MAX,
    VALUES_MAX,
    PredicateError,
    predicate_of,
)
from coordinator.core.model.commands import Subscribe
from coordinator.core.model.types import CAS_MAX, Cas
from coordinator.http.models import Text


def _as_list(given: Any) -> Any:
    return [given] if isinstance(given, str | int) and not isinstance(given, bool) else given


Texts = Annotated[
    list[Annotated[Text, Field(max_length=TEXT_LENGTH_MAX)]],
    BeforeValidator(_as_list),
    Field(max_length=VALUES_MAX),
]
Numbers = Annotated[
    list[Annotated[int, Field(ge=0, le=NUMBER_MAX)]],
    BeforeValidator(_as_list),
    Field(max_length=VALUES_MAX),
]


class FilterBody(BaseModel):
    """Filters, all of which a change must match: each has a value, or several alternatives."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Texts = []
    bucket: Texts = []
    index: Texts = []
    indexer: Numbers = []
    state: Texts = []
    key: Texts = []
    principal: Texts = []
    request: Texts = []
    txn: Texts = []

    @model_validator(mode="after")
    def _can_fit(self) -> FilterBody:
        try:
            predicate_of(self._given())
        except PredicateError as error:
            raise ValueError(str(error)) from None
        return self

    def _given(self) -> dict[str, list[Any]]:
        return {name: sorted({*given}) for name in FIELDS if (given := getattr(self, name))}

    def text(self) -> str:
        """Return the one JSON text of these filters."""
        return compact(self._given())


class TopicBody(BaseModel):
    """A topic: its name, and the filter of its changes (left out: all changes)."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Text
    filter: FilterBody = FilterBody()


class SubscriptionBody(BaseModel):
    """A subscription: the subscriber's id, a filter over the topic's changes, and the delivery."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: Text
    filter: FilterBody = FilterBody()
    after: Annotated[int, Field(ge=0, le=CAS_MAX)] | None = None
    deliver_to: Text | None = None
    expires_after_ms: Annotated[int, Field(ge=0, lt=2**53)] | None = None

    def command(self, topic: str) -> Subscribe:
        return Subscribe(
            topic=topic,
            subscriber=self.id,
            filter_json=self.filter.text(),
            after=None if self.after is None else Cas(self.after),
            deliver_to=self.deliver_to or "",
            expires_after_ms=self.expires_after_ms or 0,
        )


class AckBody(BaseModel):
    """All changes up to this CAS are acknowledged."""

    model_config = ConfigDict(extra="forbid", strict=True)

    cas: Annotated[Cas, Field(ge=0, le=CAS_MAX)]


# -- answers -------------------------------------------------------------------------------------


class TopicModel(BaseModel):
    name: str
    filter: dict[str, list[Any]]
    created_ms: int


class ListedTopicModel(TopicModel):
    subscriptions: int
    cas: Cas


class TopicAnswer(BaseModel):
    topic: TopicModel
    cas: Cas
    txn: str = ""


class TopicsAnswer(BaseModel):
    topics: list[ListedTopicModel]
    cas: Cas


class SubscribedModel(BaseModel):
    """`number` is unique: it distinguishes this subscription from earlier ones under its id."""

    topic: str
    id: str
    number: str
    filter: dict[str, list[Any]]
    after: Cas
    deliver_to: str | None
    expires_after_ms: int | None
    state: str
    created_ms: int


class SubscribedAnswer(BaseModel):
    subscription: SubscribedModel
    cas: Cas
    txn: str = ""


class LagModel(BaseModel):
    """The lag: in CAS, in changes that wait, and the time that the oldest has waited, in ms. The
    last two are null if the oldest change is older than those that the node keeps in memory."""

    cas: int
    changes: int | None
    ms: int | None


class SubscriptionModel(SubscribedModel):
    """`acknowledged`: the position, as far as this node knows: the CAS up to which all changes are
    acknowledged. `problem`: why delivery to Kafka fails; only the master knows it."""

    cas: Cas
    acknowledged: Cas
    acknowledged_ms: int | None
    lag: LagModel
    problem: str | None


class SubscriptionAnswer(BaseModel):
    subscription: SubscriptionModel
    cas: Cas


class SubscriptionsAnswer(BaseModel):
    subscriptions: list[SubscriptionModel]
    cas: Cas


class AcknowledgedAnswer(BaseModel):
    acknowledged: Cas
