"""A device that runs behind the host, as far as a test lets it catch up."""

from __future__ import annotations

from typing import Any


class FakeStream:
    """A queue of a device: what was put into it takes `queued_ms`, `done_ms` of it have
    passed."""

    def __init__(self, device_index: int = 0) -> None:
        self.device_index = device_index
        self.queued_ms = 0.0
        self.done_ms = 0.0
        self.captured = False

    def query(self) -> bool:
        assert not self.captured, "this ends the capture"
        return self.queued_ms <= self.done_ms


class FakeDevice:
    """Devices that run behind: `launch` queues work on the current stream, and it has
    been done only once `catch_up` was called. Stands in for the module ``torch.cuda``;
    an event does what torch's own would, also where that is to raise."""

    def __init__(self) -> None:
        self.stream = FakeStream()  # the current one
        self.initialized = True
        self.capturing = False
        self.backend = "native"
        self.reserved: dict[int, int] = {0: 512, 1: 512}  # by device
        self.events_made = 0
        self.waits = 0

    def launch(self, milliseconds: float) -> None:
        self.stream.queued_ms += milliseconds

    def catch_up(self) -> None:
        self.stream.done_ms = self.stream.queued_ms

    def is_initialized(self) -> bool:
        return self.initialized

    def current_stream(self) -> FakeStream:
        assert self.initialized, "this initialises CUDA"
        return self.stream

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def get_allocator_backend(self) -> str:
        return self.backend

    def memory_stats_as_nested_dict(self, index: int) -> Any:
        taken = {"all": {"allocated": self.reserved[index]}}
        return {"reserved_bytes": taken, "allocated_bytes": taken}

    def Event(self, enable_timing: bool) -> FakeEvent:  # noqa: N802
        assert enable_timing
        self.events_made += 1
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.stream: FakeStream | None = None

    def record(self, stream: FakeStream) -> None:
        assert not self.device.capturing
        assert self.stream is None or self.stream.device_index == stream.device_index
        self.stream = stream
        self.at_ms = stream.queued_ms

    def query(self) -> bool:
        return self.stream is None or self.at_ms <= self.stream.done_ms

    def synchronize(self) -> None:
        assert self.stream is not None
        self.device.waits += 1
        self.stream.done_ms = max(self.at_ms, self.stream.done_ms)

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.query()
        assert end.query()
        assert self.stream is not None
        assert end.stream is not None
        assert self.stream.device_index == end.stream.device_index
        return end.at_ms - self.at_ms
