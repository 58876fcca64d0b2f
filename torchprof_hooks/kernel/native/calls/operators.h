// Measures functions by operators: a function is an outermost operator inside of the current call.
// torch calls us before and after each operator (at::RecordFunction), without the GIL.

#pragma once

#include "../backward/nodes.h"
#include "work.h"

#include <ATen/record_function.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <algorithm>
#include <cstring>
#include <exception>

namespace {

// A running operator: what it is to each cursor that has observed it.
struct ObservedOperator : at::ObserverContext {
  struct One {
    Cursor* cursor;
    Node *node, *counted;  // `counted`: the node in whose call its operations were counted, or null
  };
  c10::SmallVector<One, 2> each;
  int exceptions = std::uncaught_exceptions();  // when it began
  bool is_quiet = false;  // no cursor observes the operators that it calls
};

// The key of an operator in `Node::operators`: a hash of its name, of shapes and types of its inputs,
// and of which inputs need gradients; or of its name alone, if its shapes have no node of their own.
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
    add(uint64_t(tensor.scalar_type()));
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

// (shape, type of its numbers, type of its device, whether it needs a gradient, whether it is an
// array). Shape and types are "?" if only code of the program knows the shape.
PyObject* as_python(const at::Tensor& tensor) {
  if (!is_given(tensor)) Py_RETURN_NONE;
  if (!has_shape(tensor))
    return Py_BuildValue("((s)ssNO)", "?", "?", "?", PyBool_FromLong(tensor.requires_grad()), Py_False);
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

//: How many keys a node has at most: after that, it forgets all.
constexpr size_t kKeys = 1 << 14;

// Asks Python for the node of an operator that is new at `caller`; null if it is no function.
// key, others: of the operator with these shapes, and with any that have no node of their own.
Node* place_operator(Cursor* cursor, Node* caller, Key key, Key others, const at::RecordFunction& function) {
  InOperator with(cursor);
  OurWork ours(cursor);
  Owned name(PyUnicode_FromString(function.name())), inputs(as_list(function.inputs(), 0));
  if (!name || !inputs) return nullptr;
  Owned found(call_method(cursor->functions, names.place, caller, name.get(), inputs.get()));
  if (!found || !is_a<&node_type>(found.get())) return nullptr;
  Node* node = Node::of(found.get());
  if (caller->operators.size() >= kKeys) caller->operators.clear();
  caller->operators.insert((node->is_mixed ? others : key).value(), node);
  return node;
}

// Asks Python for the operations of an operator, once if it has no formula for operators of this name.
MaybeWork ask_for_work(Cursor* cursor, const at::RecordFunction& function) {
  uint64_t key = Key(function.name()).value();
  if (cursor->without_work.count(key) != 0) return {};
  InOperator with(cursor);
  Owned name(PyUnicode_FromString(function.name())), inputs(as_list(function.inputs(), 0));
  if (!name || !inputs) return {};
  Owned answer(call_method(cursor->functions, names.count_work, name.get(), inputs.get()));
  if (answer.get() == Py_None) cursor->without_work.insert(key);
  long long forward, gradients;
  if (!answer || !PyTuple_Check(answer.get())) return {};
  if (!PyArg_ParseTuple(answer.get(), "LL", &forward, &gradients)) return {};
  return Work{forward, gradients};
}

// Counts the operations of an operator. Returns whether they are known; they then include those of the
// operators that this one calls. Dispatch modes of the program may know the outcome already; if not, they
// call the operator again.
bool is_counted(Cursor* cursor, const at::RecordFunction& function) {
  if (c10::impl::TorchDispatchModeTLS::any_modes_set()) return false;
  bool is_known;
  MaybeWork found = work_of(function, &is_known);
  if (!is_known) found = ask_for_work(cursor, function);
  if (!found) return false;
  cursor->work.forward += found->forward;
  cursor->work.gradients += found->gradients;
  return true;
}

// The call of a function at `node` ends: keeps what was counted in it.
void end_counting(Cursor* cursor, Node* node, bool is_cut) {
  if (cursor->counted != node) return;
  cursor->counted = nullptr;
  Work &all = node->work, found = cursor->work;
  if (!node->is_mixed) {
    all = {std::max(all.forward, found.forward), std::max(all.gradients, found.gradients)};
  } else if (!is_cut) {
    all = {all.forward + found.forward, all.gradients + found.gradients};
    node->with_gradients += found.gradients != 0;
  }
}

// Whether it is no operator, but the engine's own record around a node, in a pass that nobody follows.
bool is_of_engine(const at::RecordFunction& function) {
  return std::strncmp(function.name(), "autograd::", 10) == 0;
}

// Whether no cursor needs to observe the operators that this one calls: to all, they are parts of it,
// and its work is known. Then our callback is off meanwhile. (If it is on, a step of small modules
// takes 1.04 times as long.)
bool wants_no_inner(const Observing& here, const ObservedOperator& observed) {
  auto is_whole = [](const ObservedOperator::One& one) {
    return one.node != nullptr && !one.node->observes_operators && one.cursor->counted == nullptr;
  };
  return observed.each.size() == here.cursors.size() && std::all_of(observed.each.begin(), observed.each.end(), is_whole);
}

void drop_left(Observing& here) {
  if (here.running != 0 || here.left.empty()) return;
  WithGil gil;
  for (Cursor* cursor : std::exchange(here.left, {})) Py_DECREF(cursor);
}

// The node of an operator that is called from `caller`; null if it is no function.
Node* find_operator(Cursor* cursor, Node* caller, const at::RecordFunction& function, bool* is_new) {
  Key key(function.name());
  key.add(uint64_t(c10::GradMode::is_enabled()));
  for (const c10::IValue& input : function.inputs()) key.add(input);
  if (Node* node = caller->operators.find(key.value())) return node;
  Key others(function.name());
  others.add(uint64_t(-1));
  if (Node* node = caller->operators.find(others.value())) return node;
  *is_new = true;
  return place_operator(cursor, caller, key, others, function);
}

std::unique_ptr<at::ObserverContext> at_operator_start(const at::RecordFunction& function) {
  Observing* here = observing;
  if (here == nullptr || here->is_asking || is_of_engine(function)) return nullptr;
  std::unique_ptr<ObservedOperator> observed;
  bool is_wanted = false;
  here->running++;  // so that no cursor goes while Python runs in here
  long thread = long(PyThread_get_thread_ident());
  for (size_t place = 0; place < here->cursors.size(); place++) {
    Cursor* cursor = here->cursors[place];
    Node* caller = cursor->site;
    bool is_inner = caller->is_function && !caller->observes_operators;  // a part of another operator
    if (!cursor->is_observing || cursor->thread != thread) continue;  // does not follow this thread now
    if (!is_inner && !caller->observes_operators) continue;
    is_wanted = true;
    ObservedOperator::One one{cursor, nullptr, nullptr};
    here->is_asking = true;
    bool is_whole = false;
    if (!is_inner) {
      bool is_new = false;
      one.node = find_operator(cursor, caller, function, &is_new);
      if (one.node != nullptr && one.node->counts_work && (is_new || one.node->is_mixed)) {
        cursor->counted = one.node;
        cursor->work = {};
        is_whole = is_counted(cursor, function);
      }
      if (one.node != nullptr) open_call(cursor, one.node);
    } else if (cursor->counted == caller) {
      is_whole = is_counted(cursor, function);
    }
    if (is_whole) one.counted = std::exchange(cursor->counted, nullptr);
    here->is_asking = false;
    if (one.node == nullptr && one.counted == nullptr) continue;
    if (observed == nullptr) observed = std::make_unique<ObservedOperator>();
    observed->each.push_back(one);
  }
  if (!is_wanted) here->turn(false);
  if (observed == nullptr) {
    here->running--;
    drop_left(*here);
    return nullptr;
  }
  observed->is_quiet = wants_no_inner(*here, *observed);
  if (observed->is_quiet) at::disableCallback(here->handle);
  return observed;
}

void close_operator(Cursor* cursor, Node* node, Nanoseconds end_ns) {
  std::optional<InOperator> with;  // raises exceptions later
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
  auto& each = static_cast<ObservedOperator*>(context)->each;
  bool is_cut = std::uncaught_exceptions() > static_cast<ObservedOperator*>(context)->exceptions;
  Observing& here = *observing;
  here.is_asking = true;
  for (auto one = each.rbegin(); one != each.rend(); ++one) {
    if (one->counted != nullptr && one->cursor->site == one->counted) one->cursor->counted = one->counted;
    if (one->node == nullptr) continue;
    one->node->cut += is_cut;
    end_counting(one->cursor, one->node, is_cut);
    close_operator(one->cursor, one->node, end_ns);
  }
  if (static_cast<ObservedOperator*>(context)->is_quiet && here.handle != 0) at::reenableCallback(here.handle);
  here.is_asking = false;
  here.running--;
  drop_left(here);
}

bool Observing::settle() {
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

// Begins, or ends, that the cursor observes the operators of this thread. Another thread can only end
// it.
PyObject* observe_operators(PyObject* self, PyObject* wanted) {
  Cursor* cursor = Cursor::of(self);
  int is_wanted = PyObject_IsTrue(wanted);
  if (is_wanted < 0) return nullptr;
  bool is_here = long(PyThread_get_thread_ident()) == cursor->thread;
  cursor->is_observing = is_wanted && is_here;
  if (!is_here) Py_RETURN_NONE;
  Observing& here = make_observing();
  auto is_over = [&](Cursor* one) {
    if (one->is_observing && one != cursor) return false;
    here.left.push_back(one);
    return true;
  };
  std::erase_if(here.cursors, is_over);
  if (is_wanted) here.cursors.push_back(Cursor::of(Py_NewRef(self)));
  if (here.cursors.empty()) here.turn(false);
  here.settle();
  observe_if_wanted(cursor);
  drop_left(here);
  Py_RETURN_NONE;
}

}  // namespace
