// The floating-point operations of an operator, by the shapes of its inputs: torch's formulas
// (torch.utils.flop_counter) for the operators that nearly all products come down to. For others, Python is
// asked (functions/work.py).

#pragma once

#include "../node.h"

#include <ATen/record_function.h>

#include <optional>
#include <string_view>

namespace {

// False for a tensor that is not defined, or in which torch has wrapped a number.
bool is_given(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

// False if only code of the program knows the shape, or sizes are no plain numbers.
bool has_shape(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return !impl->key_set().has(c10::DispatchKey::Python) && !impl->has_symbolic_sizes_strides() &&
         !tensor.is_nested();
}

// Whether a tensor is a dense array, and not batched by vmap.
bool is_array(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && !tensor.is_quantized() &&
         !tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::FuncTorchBatched);
}

using Inputs = c10::ArrayRef<const c10::IValue>;

// The input at this place; null if it is no dense array of floating-point matrices.
const at::Tensor* factor(Inputs inputs, size_t place) {
  if (place >= inputs.size() || !inputs[place].isTensor()) return nullptr;
  const at::Tensor& tensor = inputs[place].toTensor();
  if (!is_given(tensor) || !has_shape(tensor) || !is_array(tensor) || tensor.dim() < 2) return nullptr;
  bool floats = at::isFloatingType(tensor.scalar_type()) || at::isComplexType(tensor.scalar_type());
  return floats ? &tensor : nullptr;
}

// Of `one` product, and of its two gradients, if they are wanted.
Work work_of_product(int64_t one, bool left, bool right) { return {one, one * (left + right)}; }

using MaybeWork = std::optional<Work>;

MaybeWork of_matrices(Inputs inputs, size_t place) {
  const at::Tensor *left = factor(inputs, place), *right = factor(inputs, place + 1);
  if (left == nullptr || right == nullptr) return {};
  return work_of_product(2 * left->numel() * right->size(-1), left->requires_grad(), right->requires_grad());
}

// Scores, made of queries and keys, and what they weigh.
MaybeWork of_attention(Inputs inputs) {
  const at::Tensor *query = factor(inputs, 0), *key = factor(inputs, 1), *value = factor(inputs, 2);
  if (query == nullptr || key == nullptr || value == nullptr || query->size(-1) == 0) return {};
  int64_t scores = query->numel() / query->size(-1) * key->size(-2);
  bool by_query = query->requires_grad(), by_key = key->requires_grad();
  Work first = work_of_product(2 * scores * query->size(-1), by_query, by_key);
  Work second = work_of_product(2 * scores * value->size(-1), by_query || by_key, value->requires_grad());
  return Work{first.forward + second.forward, first.gradients + second.gradients};
}

// How many places of an output the weight of a convolution meets: (stride, padding, dilation) of each
// dimension are lists, of one number if it is the same for all.
int64_t outputs_of(const at::Tensor& input, const at::Tensor& weight, Inputs lists) {
  int64_t count = input.size(0);
  for (int64_t place = 2; place < input.dim(); place++) {
    int64_t each[3];
    for (size_t kind = 0; kind < 3; kind++) {
      std::vector<int64_t> numbers = lists[kind].toIntVector();
      size_t last = numbers.size() - 1;
      each[kind] = numbers.at(std::min(size_t(place) - 2, last));
    }
    auto [stride, padding, dilation] = each;
    count *= (input.size(place) + 2 * padding - dilation * (weight.size(place) - 1) - 1) / stride + 1;
  }
  return count;
}

// input, weight, bias, stride, padding, dilation, transposed, ...
MaybeWork of_convolution(Inputs inputs) {
  const at::Tensor *input = factor(inputs, 0), *weight = factor(inputs, 1);
  if (input == nullptr || weight == nullptr || input->dim() != weight->dim()) return {};
  Inputs lists = inputs.slice(3, 3);
  for (const c10::IValue& list : lists)
    if (!list.isIntList() || list.toIntVector().empty()) return {};
  if (!inputs[6].isBool() || weight->size(0) == 0) return {};
  int64_t products = inputs[6].toBool() ? input->numel() * (weight->numel() / weight->size(0))
                                        : outputs_of(*input, *weight, lists) * weight->numel();
  return work_of_product(2 * products, input->requires_grad(), weight->requires_grad());
}

// What an operator takes, if there is a formula here. `is_known`: whether there is one for its name.
MaybeWork work_of(const at::RecordFunction& function, bool* is_known) {
  std::string_view name = function.name(), attention = "_scaled_dot_product_";
  *is_known = false;
  if (!name.starts_with("aten::")) return {};
  name.remove_prefix(6);
  *is_known = true;
  if (name == "mm" || name == "bmm") return of_matrices(function.inputs(), 0);
  if (name == "addmm" || name == "baddbmm") return of_matrices(function.inputs(), 1);
  if (name == "convolution" || name == "_convolution") return of_convolution(function.inputs());
  bool is_attention = name.starts_with(attention) && name.find("math") == name.npos;
  if (is_attention && !name.ends_with("backward")) return of_attention(function.inputs());
  *is_known = false;
  return {};
}

}  // namespace
