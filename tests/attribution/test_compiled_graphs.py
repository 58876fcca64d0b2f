"""What is read in generated code of what a CUDA graph of it runs: without Triton, from
code of the same form that was written by hand."""

from __future__ import annotations

import types
from pathlib import Path
from unittest.mock import Mock

import pytest

from torchprof_hooks.instruments.compiled.kernel_map import names_in
from torchprof_hooks.instruments.compiled.wrapper import functions_of
from torchprof_hooks.kernel.torch_names.inductor import computes

CODE = """\
triton_poi_fused_relu_0 = async_compile.triton('triton_poi_fused_relu_0', 0)
add_kernel_1 = async_compile.triton('add_kernel', 0)
cuda_fused_2 = async_compile.cuda('', 'so')

def partition_0(args):
    arg0, = args
    args.clear()
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        buf0 = empty_strided_cuda((2, 2), (2, 1), torch.float32)
        stream0 = get_raw_stream(0)
        triton_poi_fused_relu_0.run(arg0, buf0, 4, stream=stream0)
        LINE
        add_kernel_1.run(buf0, stream=stream0)
        extern_kernels.mm(buf0, buf0, out=buf0)
    return (buf0, )

class Runner:
    def call(self, args):
        partition0_args = [args]
        (buf0) = self.partitions[0](partition0_args)
        return (buf0, )
"""


@pytest.mark.parametrize(
    ("line", "in_order"),
    [
        ("buf1 = torch.ops.aten.set_.source_Tensor(arg0, arg0)", True),
        ("aten.index_put_(buf0, [arg0], arg0, False)", True),
        ("workspace_0.zero_()", False),
        ("buf0.copy_(arg0, False)", False),
        ("buf1 = torch.ops._c10d_functional.wait_tensor.default(buf0)", False),
        ("with stream1:\n            extern_kernels.mm(arg0, arg0, out=buf0)", False),
    ],
)
def test_kernels_of_a_partition(line: str, in_order: bool, tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text(CODE.replace("LINE", line))
    wrapper = types.ModuleType("code")
    vars(wrapper).update(__file__=str(path), async_compile=Mock())
    exec(compile(path.read_text(), str(path), "exec"), vars(wrapper))
    call, partition = functions_of(wrapper, print)
    assert call.partitions == [partition]
    names = [each.name for each in partition.kernels]
    device_names = [partition.triton.get(name, "") for name in names]
    assert device_names[0] == "triton_poi_fused_relu_0"
    assert device_names[-2:] == ["add_kernel", ""]
    assert partition.triton["cuda_fused_2"] == "cuda_fused_2"
    assert partition.in_order == in_order


def test_calls_that_are_certain_to_run_something() -> None:
    assert computes("extern_kernels.mm")
    assert computes("torch.ops.aten._scaled_dot_product_flash_attention.default")
    assert computes("aten.randint.low_out")
    assert not computes("aten.set_.source_Tensor")
    assert not computes("torch.ops.aten.view_as_real.default")
    assert not computes("torch.ops.aten.no_such_operator.default")
    assert not computes("torch.ops.torchprof_hooks_tests.work.default")


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("L['self']._modules['blocks'][0]", ["blocks", "0"]),
        ("L['fn'].0", ["0"]),
        # Of a class of torch's that was compiled in place; torch 2.15, on CUDA.
        ("L['fn'].__self__.0", ["0"]),
    ],
)
def test_names_on_the_way_to_a_module(source: str, names: list[str]) -> None:
    assert names_in(source) == names
