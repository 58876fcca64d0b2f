// What all parts of the core need.

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <atomic>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

namespace torch::autograd {
// Declared here, as torch's header that declares it takes too long to compile.
int get_current_graph_task_id();
}  // namespace torch::autograd

// Shorthands for the tables that describe types and methods to Python.
#define MODULE "torchprof_hooks.kernel.core.native."
#define SLOT(slot, value) {slot, reinterpret_cast<void*>(value)}
#define FASTCALL(function) reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function))
constexpr unsigned kWithCycles = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC;

// To be held for a few instructions only. The holder must not wait for the GIL: a thread that
// spins may have that.
class SpinLock {
 public:
  void lock() {
    for (int tries = 0; flag_.test_and_set(std::memory_order_acquire); tries++)
      if (tries >= 64) std::this_thread::yield();  // the holder may not be running
  }
  void unlock() { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag flag_ = ATOMIC_FLAG_INIT;
};

using Locked = std::lock_guard<SpinLock>;

// A value that one thread changes while another one may read it: the reader gets the old or the new one.
// (Functions begin and end without the GIL.)
template <class T>
class Relaxed {
 public:
  Relaxed() = default;
  Relaxed(T value) : value_(value) {}
  Relaxed(const Relaxed& other) : value_(T(other)) {}
  Relaxed& operator=(const Relaxed& other) { return *this = T(other); }
  Relaxed& operator=(T value) {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }
  Relaxed& operator+=(T more) { return *this = T(*this) + more; }
  operator T() const { return value_.load(std::memory_order_relaxed); }
  T operator->() const { return *this; }

 private:
  std::atomic<T> value_{};
  static_assert(sizeof(std::atomic<T>) == sizeof(T), "Python reads it as it is");
};

// Owns a reference, or null, and gives it back at the end of its scope (with the GIL held).
class Owned {
 public:
  explicit Owned(PyObject* object) : object_(object) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};

// A Python object with a part in C++. `Part::each_held` calls a function with each reference
// that the part owns (or null): this class visits, clears and gives them back.
template <class Self, class Part>
struct WithPart : PyObject, Part {
  static Self* of(PyObject* self) { return static_cast<Self*>(self); }

  // Serves as `__new__`, for any arguments.
  static PyObject* make(PyTypeObject* type, PyObject* = nullptr, PyObject* = nullptr) {
    PyObject* self = type->tp_alloc(type, 0);
    if (self == nullptr) return nullptr;
    new (static_cast<Part*>(of(self))) Part();
    if (PyErr_Occurred()) Py_CLEAR(self);
    return self;
  }
  static int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    int stops = 0;
    of(self)->each_held([&](auto* held) { stops = stops || held == nullptr ? stops : visit(held, arg); });
    return stops;
  }
  static int clear(PyObject* self) {
    of(self)->each_held([](auto*& held) { Py_XDECREF(std::exchange(held, nullptr)); });
    return 0;
  }
  static void dealloc(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    of(self)->~Part();
    type->tp_free(self);
    Py_DECREF(type);
  }
};

template <PyTypeObject** type>
bool is_a(PyObject* value) {
  return PyObject_TypeCheck(value, *type);
}

// Makes a type, and adds it to the module. False: an exception.
inline bool add_type(PyObject* module, PyType_Spec* spec, PyTypeObject** type) {
  *type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(spec));
  return *type != nullptr && PyModule_AddType(module, *type) == 0;
}

// Gives back what a call into Python has returned. False: an exception.
inline bool is_done(PyObject* answer) {
  Py_XDECREF(answer);
  return answer != nullptr;
}

template <class... Arguments>
PyObject* call_method(PyObject* object, PyObject* name, Arguments*... arguments) {
  return PyObject_CallMethodObjArgs(object, name, static_cast<PyObject*>(arguments)..., nullptr);
}

// Takes the exception that is set, or null: PyErr_GetRaisedException, which Python has since
// 3.12, and the next PyErr_SetRaisedException.
inline PyObject* take_raised() {
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  PyErr_NormalizeException(&type, &error, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(error, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return error;
}

// Sets `error` as the current exception, or none if it is null, in place of one that was set
// before. Takes over the reference.
inline void set_raised(PyObject* error) {
  PyObject* type = error ? reinterpret_cast<PyObject*>(Py_TYPE(error)) : nullptr;
  PyErr_Restore(Py_XNewRef(type), error, error ? PyException_GetTraceback(error) : nullptr);
}

// Takes the GIL, in any thread, until the end of its scope. Saves the current exception, and sets it
// again; one that is raised meanwhile, and not taken, is dropped.
class WithGil {
 public:
  WithGil() : state_(PyGILState_Ensure()), before_(take_raised()) {}
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;
  ~WithGil() {
    set_raised(before_);
    PyGILState_Release(state_);
  }

 private:
  PyGILState_STATE state_;
  PyObject* before_;
};

// Reports the exception that is set where it cannot be raised, as Python does with those of
// destructors. An interrupt is not reported, but raised again in a moment.
// about: the object whose code has raised it.
inline void report_unraisable(PyObject* about) {
  if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
    PyErr_Clear();
    PyErr_SetInterrupt();
  } else {
    PyErr_WriteUnraisable(about);
  }
}

inline int raise_it(void* error) {
  set_raised(static_cast<PyObject*>(error));
  return -1;
}

// Raises an exception in the main thread in a moment, as signals do: where it comes from, it cannot
// pass through. Takes over the reference; the GIL is held.
inline void raise_soon(PyObject* error) {
  if (error != nullptr && Py_AddPendingCall(raise_it, error) < 0) Py_DECREF(error);
}

// For Python code that asks torch about a device, and has raised where no exception can pass (the GIL
// is held). Drops a RuntimeError, which is torch's: the device has failed, which the program learns
// itself. Others come from the handler of a signal, and are raised in a moment.
inline void raise_others_soon() {
  if (PyErr_ExceptionMatches(PyExc_RuntimeError))
    PyErr_Clear();
  else
    raise_soon(take_raised());
}

// Names of attributes, methods and keys of Python objects, interned.
#define EACH_NAME(DO)                                                                         \
  DO(_call_impl) DO(_compiled_call_impl) DO(_wrapped_call_impl) DO(generation) DO(task)        \
  DO(thread) /* what follows is called */ DO(abort_down_to) DO(backward_site) DO(called)      \
  DO(called_site) DO(count_if_aborted) DO(count_work) DO(place) DO(returned)

namespace {

struct Names {
#define DECLARE(name) PyObject* name;
  EACH_NAME(DECLARE)
#undef DECLARE

  void intern() {
#define INTERN(name) name = PyUnicode_InternFromString(#name);
    EACH_NAME(INTERN)
#undef INTERN
  }
} names;

}  // namespace
