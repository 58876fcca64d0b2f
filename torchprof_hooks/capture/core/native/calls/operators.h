// Measures functions by operators: a function is an outermost operator inside of the current call.
// torch calls us before and after each operator (at::RecordFunction), without the GIL.

#pragma once

#include "../backward/nodes.h"

#include <ATen/record_function.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <algorithm>
#include <cstring>
#include <exception>

namespace {

// A running operator: what it is to each cursor that has heard of it.
struct Heard : at::ObserverContext {
  struct One {
    Cursor* cursor;
    Node *node, *described;  // `described`: the node in whose first call it was counted, or null
  };
  c10::SmallVector<One, 2> each;
  int exceptions = std::uncaught_exceptions();  // when it began
  bool is_quiet = false;  // no cursor hears of the operators that it calls
};

// The key of an operator in `Node::operators`: a hash of its name, of the shapes of its inputs, and
// of which inputs need gradients.
class Key {
 public:
  // Calls under dispatch modes of the program have other keys: a mode may call the operator again, or
  // not at all.
  explicit Key(const char* name) {
    for (; *name != 0; name++) add(uint64_t(*name));
    add(uint64_t(c10::impl::TorchDispatchModeTLS::any_modes_set()));
  }
  void add(uint64_t number) {
    value_ = (value_ ^ number) * 0x9FB21C651E98DF25;
    value_ ^= value_ >> 32;
  }
  void add(const at::Tensor& tensor) {
    if (!is_given(tensor)) return add(1);
    add(2 + tensor.requires_grad());
    if (!has_shape(tensor)) return add(4);
    for (int64_t size : tensor.sizes()) add(uint64_t(size));
    add(uint64_t(-1) - uint64_t(tensor.dim()));
  }
  void add(const c10::IValue& value, int depth = 0) {
    if (value.isTensor()) return add(value.toTensor());
    if (!value.isList() || depth == kDepth) return;
    c10::ArrayRef<c10::IValue> items = value.toListRef();
    add(items.size());
    for (const c10::IValue& item : items.slice(0, std::min(items.size(), kItems))) {
      if (!item.isTensor() && !item.isList()) return;
      add(item, depth + 1);
    }
  }
  uint64_t value() const { return value_; }

  // False for a tensor that is not defined, or in which torch has wrapped a number.
  static bool is_given(const at::Tensor& tensor) {
    return tensor.defined() && !tensor.unsafeGetTensorImpl()->is_wrapped_number();
  }

  // False if only code of the program knows the shape, or sizes are no plain numbers.
  static bool has_shape(const at::Tensor& tensor) {
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    return !impl->key_set().has(c10::DispatchKey::Python) && !impl->has_symbolic_sizes_strides() &&
           !tensor.is_nested();
  }

  //: How far lists of tensors are searched.
  static constexpr size_t kItems = 256;
  static constexpr int kDepth = 3;

 private:
  uint64_t value_ = 14695981039346656037ull;
};

PyObject* as_python(const c10::IValue& value, int depth);

PyObject* as_tuple(c10::IntArrayRef numbers) {
  PyObject* tuple = PyTuple_New(Py_ssize_t(numbers.size()));
  for (size_t place = 0; tuple != nullptr && place < numbers.size(); place++)
    PyTuple_SET_ITEM(tuple, Py_ssize_t(place), PyLong_FromLongLong(numbers[place]));
  return tuple;
}

// Whether a tensor is a dense array, and not batched by vmap.
bool is_array(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && !tensor.is_quantized() &&
         !tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::FuncTorchBatched);
}

// (shape, type of its numbers, type of its device, whether it needs a gradient, whether it is an
// array). Shape and types are None if only code of the program knows the shape.
PyObject* as_python(const at::Tensor& tensor) {
  if (!Key::is_given(tensor)) Py_RETURN_NONE;
  if (!Key::has_shape(tensor))
    return Py_BuildValue("(OOONO)", Py_None, Py_None, Py_None, PyBool_FromLong(tensor.requires_grad()), Py_False);
  PyObject* shape = as_tuple(tensor.sizes());
  return Py_BuildValue("(NssNN)", shape, c10::toString(tensor.scalar_type()),
                       c10::DeviceTypeName(tensor.device().type(), true).c_str(),
                       PyBool_FromLong(tensor.requires_grad()), PyBool_FromLong(is_array(tensor)));
}

PyObject* as_list(c10::ArrayRef<c10::IValue> values, int depth) {
  Owned list(PyList_New(0));
  for (const c10::IValue& value : values.slice(0, std::min(values.size(), Key::kItems))) {
    Owned item(as_python(value, depth + 1));
    if (!list || !item || PyList_Append(list.get(), item.get()) < 0) return nullptr;
  }
  return Py_XNewRef(list.get());
}

// Tensors as tuples (see above), lists as lists; what is neither a number nor a text as None.
PyObject* as_python(const c10::IValue& value, int depth) {
  if (value.isTensor()) return as_python(value.toTensor());
  if (value.isBool()) return PyBool_FromLong(value.toBool());
  if (value.isInt()) return PyLong_FromLongLong(value.toInt());
  if (value.isDouble()) return PyFloat_FromDouble(value.toDouble());
  if (value.isString()) return PyUnicode_FromString(value.toStringRef().c_str());
  if (value.isList() && depth < Key::kDepth) return as_list(value.toListRef(), depth);
  Py_RETURN_NONE;
}

// Takes the GIL in a callback of an operator, and keeps the cursor alive. An exception that is raised
// meanwhile (by a signal handler, say) cannot pass through torch: it is raised soon after.
class InOperator : WithGil {
 public:
  explicit InOperator(Cursor* cursor) : cursor_(cursor) { Py_INCREF(cursor); }
  ~InOperator() {
    raise_soon(take_raised());
    Py_DECREF(cursor_);
  }

 private:
  Cursor* cursor_;
};

// Tells `functions` of an operator, called at `node`.
PyObject* tell_of_operator(Cursor* cursor, PyObject* method, Node* node, const at::RecordFunction& function) {
  Owned name(PyUnicode_FromString(function.name()));
  Owned inputs(as_list(function.inputs(), 0));
  if (!name || !inputs) return nullptr;
  return call_method(cursor->functions, method, cursor, node, name.get(), inputs.get());
}

// Asks Python for the node of an operator that is new at `caller`; null if it is no function.
Node* place_operator(Cursor* cursor, Node* caller, uint64_t key, const at::RecordFunction& function) {
  Node* node = nullptr;
  InOperator with(cursor);
  Owned found(tell_of_operator(cursor, names.place, caller, function));
  if (found && is_a<&node_type>(found.get())) node = Node::of(found.get());
  if (node == nullptr) return nullptr;
  caller->operators.insert(key, node);
  cursor->described = node->is_described ? node : nullptr;
  return node;
}

// Has Python count the work of an operator that is called in the first call at `node`. Returns whether
// that is known; it then includes the work of the operators that this one calls.
bool is_counted(Cursor* cursor, Node* node, const at::RecordFunction& function) {
  InOperator with(cursor);
  Owned answer(tell_of_operator(cursor, names.count_inner, node, function));
  return answer.get() == Py_True;
}

// Whether it is no operator, but the engine's own record around a node, in a pass that nobody follows.
bool is_of_engine(const at::RecordFunction& function) {
  return std::strncmp(function.name(), "autograd::", 10) == 0;
}

// Whether no cursor needs to hear of the operators that this one calls: to all, they are parts of it,
// and its work is known. Then our callback is off meanwhile. (If it is on, a step of small modules
// takes 1.04 times as long.)
bool wants_no_inner(const Listening& here, const Heard& heard) {
  auto is_whole = [](const Heard::One& one) {
    return one.node != nullptr && !one.node->sees_operators && one.cursor->described == nullptr;
  };
  return heard.each.size() == here.cursors.size() && std::all_of(heard.each.begin(), heard.each.end(), is_whole);
}

void drop_left(Listening& here) {
  if (here.running != 0 || here.left.empty()) return;
  WithGil gil;
  for (Cursor* cursor : std::exchange(here.left, {})) Py_DECREF(cursor);
}

std::unique_ptr<at::ObserverContext> at_operator_start(const at::RecordFunction& function) {
  Listening* here = listening;
  if (here == nullptr || here->is_asking || is_of_engine(function)) return nullptr;
  std::unique_ptr<Heard> heard;
  bool is_wanted = false;
  here->running++;  // so that no cursor goes while Python runs in here
  long thread = long(PyThread_get_thread_ident());
  for (size_t place = 0; place < here->cursors.size(); place++) {
    Cursor* cursor = here->cursors[place];
    Node* caller = cursor->site;
    bool is_inner = caller->is_function && !caller->sees_operators;  // a part of another operator
    if (!cursor->hears_operators || cursor->thread != thread) continue;  // does not follow this thread now
    if (!is_inner && !caller->sees_operators) continue;
    is_wanted = true;
    Heard::One one{cursor, nullptr, nullptr};
    here->is_asking = true;
    if (!is_inner) {
      Key key(function.name());
      if (cursor->by_shapes)
        for (const c10::IValue& input : function.inputs()) key.add(input);
      one.node = caller->operators.find(key.value());
      if (one.node == nullptr) one.node = place_operator(cursor, caller, key.value(), function);
      if (one.node != nullptr) open_call(cursor, one.node);
    } else if (cursor->described == caller && is_counted(cursor, caller, function)) {
      one.described = std::exchange(cursor->described, nullptr);
    }
    here->is_asking = false;
    if (one.node == nullptr && one.described == nullptr) continue;
    if (heard == nullptr) heard = std::make_unique<Heard>();
    heard->each.push_back(one);
  }
  if (!is_wanted) here->turn(false);
  if (heard == nullptr) {
    here->running--;
    drop_left(*here);
    return nullptr;
  }
  heard->is_quiet = wants_no_inner(*here, *heard);
  if (heard->is_quiet) at::disableCallback(here->handle);
  return heard;
}

void close_operator(Cursor* cursor, Node* node, Nanoseconds end_ns) {
  std::optional<InOperator> with;  // raises exceptions later
  if (cursor->described == node) cursor->described = nullptr;
  if (cursor->site != node) {
    if (!is_open(cursor, node)) return;  // measuring was stopped in the middle of it
    with.emplace(cursor);
    abort_down_to(cursor, node, end_ns);
  }
  close_call(cursor, node, end_ns);
  if (!is_fold_due(cursor)) return;
  if (!with) with.emplace(cursor);
  fold_if_due(cursor);
}

void at_operator_end(const at::RecordFunction&, at::ObserverContext* context) {
  if (context == nullptr) return;
  Nanoseconds end_ns = clock_ns();
  auto& each = static_cast<Heard*>(context)->each;
  bool is_cut = std::uncaught_exceptions() > static_cast<Heard*>(context)->exceptions;
  Listening& here = *listening;
  here.is_asking = true;
  for (auto one = each.rbegin(); one != each.rend(); ++one) {
    if (one->described != nullptr && one->cursor->site == one->described) one->cursor->described = one->described;
    if (one->node == nullptr) continue;
    one->node->cut += is_cut;
    close_operator(one->cursor, one->node, end_ns);
  }
  if (static_cast<Heard*>(context)->is_quiet && here.handle != 0) at::reenableCallback(here.handle);
  here.is_asking = false;
  here.running--;
  drop_left(here);
}

bool Listening::settle() {
  if (!is_in_pass() && cursors.empty() && handle != 0) {
    at::removeCallback(std::exchange(handle, 0));
    is_on = false;
  } else if (!is_in_pass() && !cursors.empty() && handle == 0) {
    handle = at::addThreadLocalCallback(at::RecordFunctionCallback(at_operator_start, at_operator_end)
                                            .needsInputs(true)
                                            .scopes({at::RecordScope::FUNCTION}));
    is_on = true;
  }
  return handle != 0;
}

// Begins, or ends, that the cursor hears of the operators of this thread. Another thread can only end
// it.
PyObject* hear_operators(PyObject* self, PyObject* wanted) {
  Cursor* cursor = Cursor::of(self);
  int is_wanted = PyObject_IsTrue(wanted);
  if (is_wanted < 0) return nullptr;
  bool is_here = long(PyThread_get_thread_ident()) == cursor->thread;
  cursor->hears_operators = is_wanted && is_here;
  if (!is_here) Py_RETURN_NONE;
  Listening& here = make_listening();
  auto is_over = [&](Cursor* one) {
    if (one->hears_operators && one != cursor) return false;
    here.left.push_back(one);
    return true;
  };
  std::erase_if(here.cursors, is_over);
  if (is_wanted) here.cursors.push_back(Cursor::of(Py_NewRef(self)));
  if (here.cursors.empty()) here.turn(false);
  here.settle();
  listen_if_wanted(cursor);
  drop_left(here);
  Py_RETURN_NONE;
}

}  // namespace
