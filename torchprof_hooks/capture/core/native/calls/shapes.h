// The shapes of the tensors that a function is given, as `shapes_of` (torch_names/functions.py)
// tells them.

#pragma once

#include "../tools.h"

#include <ATen/PythonTorchFunctionTLS.h>

#include <algorithm>
#include <memory>

// Declared here, as torch's header that declares it takes too long to compile.
namespace torch::jit::tracer {
struct TracingState;
const std::shared_ptr<TracingState>& getTracingState();
}  // namespace torch::jit::tracer

namespace shapes {

//: How far lists of tensors are searched.
constexpr Py_ssize_t kItemsSearched = 256;
constexpr int kDepthSearched = 3;

inline PyTypeObject *tensor_type, *parameter_type;
inline PyObject* shape_name;

// While it lives, what this thread does is shown to no torch function mode, and to no class
// derived from Tensor.
class Unseen {
  using TLS = at::impl::PythonTorchFunctionTLS;

 public:
  Unseen() : before_(TLS::get_disabled_state()) {
    TLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;
  ~Unseen() { TLS::set_disabled_state(before_); }

 private:
  at::impl::TorchFunctionDisabledState before_;
};

// Appends the shapes of the tensors in `value`. False: Python has to look at it, or an
// exception.
inline bool add(PyObject* shapes, PyObject* value, int depth) {
  PyTypeObject* type = Py_TYPE(value);
  if (type == tensor_type || type == parameter_type) {
    Owned shape(PyObject_GetAttr(value, shape_name));  // a nested tensor has none
    return shape && PyList_Append(shapes, shape.get()) == 0;
  }
  if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
    Py_ssize_t count = std::min(PySequence_Fast_GET_SIZE(value), kItemsSearched);
    for (Py_ssize_t place = 0; depth < kDepthSearched && place < count; place++)
      if (!add(shapes, PySequence_Fast_GET_ITEM(value, place), depth + 1)) return false;
    return true;
  }
  return !PyType_IsSubtype(type, tensor_type);
}

// The shapes of the inputs of a call, as a new tuple; null, without an exception, where
// Python has to look for them.
// kwargs: or null.
inline PyObject* usual(PyObject* args, PyObject* kwargs) {
  if (torch::jit::tracer::getTracingState()) return nullptr;
  Unseen unseen;
  Owned shapes(PyList_New(0));
  bool is_usual = bool(shapes);
  for (Py_ssize_t place = 0; is_usual && place < PyTuple_GET_SIZE(args); place++)
    is_usual = add(shapes.get(), PyTuple_GET_ITEM(args, place), 0);
  PyObject *key, *value;
  Py_ssize_t place = 0;
  while (is_usual && kwargs != nullptr && PyDict_Next(kwargs, &place, &key, &value))
    is_usual = add(shapes.get(), value, 0);
  if (is_usual) return PyList_AsTuple(shapes.get());
  PyErr_Clear();  // if it matters, it is raised again where Python looks
  return nullptr;
}

// To be called once. False: an exception.
inline bool know_tensors() {
  Owned torch(PyImport_ImportModule("torch"));
  Owned nn(PyImport_ImportModule("torch.nn"));
  if (!torch || !nn) return false;
  shape_name = PyUnicode_InternFromString("shape");
  tensor_type = reinterpret_cast<PyTypeObject*>(PyObject_GetAttrString(torch.get(), "Tensor"));
  parameter_type = reinterpret_cast<PyTypeObject*>(PyObject_GetAttrString(nn.get(), "Parameter"));
  return shape_name != nullptr && tensor_type != nullptr && parameter_type != nullptr;
}

}  // namespace shapes
