"""The lag of a role, on a real broker."""

from tests.topics.conftest import Apply
from topics import control
from topics.control import Drain
from topics.environment.settings import Settings
from topics.log.kafka import TopicPartition
from topics.log.lag import Lag
from topics.log.producer import LogProducer


async def test_a_lag_is_what_the_log_has_beyond_the_positions(
    settings: Settings, apply: Apply, producer: LogProducer
) -> None:
    await apply(control.TOPIC)
    for n in range(5):
        await producer.send(control.TOPIC, Drain(f"w{n}"), key="one")
    source = TopicPartition(control.TOPIC.full_name(settings.namespace), 0)
    positions: dict[TopicPartition, int] = {}
    lag = Lag(settings, lambda: positions)
    assert await lag.measure() == 0, "it reads nothing"
    for position, expected in ((0, 5), (3, 2), (5, 0), (9, 0)):
        positions[source] = position
        assert await lag.measure() == expected
