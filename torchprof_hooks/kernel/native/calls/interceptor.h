// Notifies cursors of calls of modules, from the place where torch looks for something to call instead of a
// module's own implementation.

#pragma once

#include "modules.h"

namespace {

// What `module.compile()` has put into `held`, the dict of a module, for torch to call: a borrowed
// reference; null: nothing, or an exception.
PyObject* own_implementation(PyObject* held) {
  return held ? PyDict_GetItemWithError(held, names._compiled_call_impl) : nullptr;
}

PyObject* new_dict_of(PyObject* module) { return PyObject_GenericGetDict(module, nullptr); }

// Calls a module as torch would without us.
PyObject* call_alone(PyObject* module, PyObject* args, PyObject* kwargs) {
  Owned held(new_dict_of(module));
  if (!held) return nullptr;
  PyObject* own = own_implementation(held.get());
  if ((own == nullptr || own == Py_None) && !PyErr_Occurred())
    own = PyDict_GetItemWithError(held.get(), names._call_impl);
  if (PyErr_Occurred()) return nullptr;
  if (own != nullptr) {
    Owned kept(Py_NewRef(own));  // the call may remove it from the dict
    return PyObject_Call(own, args, kwargs);
  }
  Owned bound(PyObject_GetAttr(module, names._call_impl));
  return bound ? PyObject_Call(bound.get(), args, kwargs) : nullptr;
}

// Takes the place of `torch.nn.Module._compiled_call_impl`. If that attribute of a module is not None,
// torch calls it in place of its own implementation: so we need no hooks, with which torch takes a
// longer way through each call. The interceptor is a property with a getter that returns None.
// `interceptor_get` does not call this getter; torch.compile traces it, and so compiles the same with
// and without us.
struct Interceptor {
  std::shared_ptr<Notified> notified;
  PyObject* doc;  // the `__doc__` that property.__init__ sets on objects of derived classes
};

// Where `Interceptor` begins in the object: behind a property, whose size is known at run time only.
Py_ssize_t interceptor_offset;

Interceptor* interceptor_of(PyObject* self) {
  return reinterpret_cast<Interceptor*>(reinterpret_cast<char*>(self) + interceptor_offset);
}

// Calls the watcher, if there is one, before a call begins. False: an exception.
bool watch(PyObject* self, PyObject* module, PyObject* args) {
  std::shared_ptr<Notified> notified = interceptor_of(self)->notified;  // a copy: the watcher may change it
  return notified == nullptr || notified->watch(module, args);
}

// Notifies the cursors of the end of a call that has raised. Meanwhile, its exception is the one that is being
// handled (sys.exc_info), as where torch calls hooks: it is pushed onto the stack of handled
// exceptions, as Python does for a generator. An exception that is raised in here is only
// reported, and does not replace that of the call.
void notify_failed(const NotifiedHere& notified, PyObject* module, PyObject* args) {
  PyObject* error = take_raised();
  PyThreadState* thread = PyThreadState_Get();
  _PyErr_StackItem handled{};
  handled.exc_value = error;
#if PY_VERSION_HEX < 0x030B0000
  Owned traceback(PyException_GetTraceback(error));
  handled.exc_type = reinterpret_cast<PyObject*>(Py_TYPE(error));
  handled.exc_traceback = traceback.get();
#endif
  handled.previous_item = thread->exc_info;
  thread->exc_info = &handled;
  if (!notified.end(module, args, Py_None)) report_unraisable(reinterpret_cast<PyObject*>(Py_TYPE(module)));
  thread->exc_info = handled.previous_item;
  set_raised(error);
}

// What an interceptor has torch call in place of a module's implementation.
struct InterceptedCall {
  PyObject_HEAD
  PyObject *interceptor, *module;
};

PyTypeObject* intercepted_call_type;

PyObject* intercepted_call_call(PyObject* self, PyObject* args, PyObject* kwargs) {
  InterceptedCall* call = reinterpret_cast<InterceptedCall*>(self);
  PyObject* module = call->module;
  if (!watch(call->interceptor, module, args)) return nullptr;
  NotifiedHere notified(interceptor_of(call->interceptor)->notified);
  PyObject* outputs = notified.begin(module, args) ? call_alone(module, args, kwargs) : nullptr;
  if (outputs == nullptr) {
    notify_failed(notified, module, args);
    return nullptr;
  }
  if (!notified.end(module, args, outputs)) Py_CLEAR(outputs);
  return outputs;
}

void intercepted_call_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  Py_DECREF(reinterpret_cast<InterceptedCall*>(self)->interceptor);
  Py_DECREF(reinterpret_cast<InterceptedCall*>(self)->module);
  type->tp_free(self);
  Py_DECREF(type);
}

// Whether torch reads the attribute, in order to call it. Programs read it, too, to see whether a
// module is compiled.
bool is_torch_asking() {
  PyFrameObject* frame = PyEval_GetFrame();
  if (frame == nullptr) return false;
  Owned code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  return reinterpret_cast<PyCodeObject*>(code.get())->co_name == names._wrapped_call_impl;
}

PyObject* interceptor_get(PyObject* self, PyObject* module, PyObject*) {
  if (module == nullptr || module == Py_None) Py_RETURN_NONE;
  const std::shared_ptr<Notified>& notified = interceptor_of(self)->notified;
  if (notified != nullptr && notified->is_any_here() && is_torch_asking()) {
    InterceptedCall* call = PyObject_New(InterceptedCall, intercepted_call_type);
    if (call == nullptr) return nullptr;
    call->interceptor = Py_NewRef(self);
    call->module = Py_NewRef(module);
    return reinterpret_cast<PyObject*>(call);
  }
  Owned held(new_dict_of(module));
  PyObject* own = own_implementation(held.get());
  if (own == nullptr && PyErr_Occurred()) return nullptr;
  return Py_NewRef(own ? own : Py_None);
}

int interceptor_set(PyObject*, PyObject* module, PyObject* value) {
  Owned held(new_dict_of(module));
  if (!held) return -1;
  if (value != nullptr) return PyDict_SetItem(held.get(), names._compiled_call_impl, value);
  int done = PyDict_DelItem(held.get(), names._compiled_call_impl);
  if (done < 0 && PyErr_ExceptionMatches(PyExc_KeyError))
    PyErr_SetObject(PyExc_AttributeError, names._compiled_call_impl);
  return done;
}

PyObject* interceptor_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject* self = PyProperty_Type.tp_new(type, args, kwargs);
  if (self != nullptr) new (&interceptor_of(self)->notified) std::shared_ptr<Notified>();
  return self;
}

void interceptor_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  Py_CLEAR(interceptor_of(self)->doc);
  interceptor_of(self)->notified.~shared_ptr();
  PyProperty_Type.tp_dealloc(self);
  Py_DECREF(type);
}

// From now on, notifies these cursors of the calls of all modules, in this order, and a watcher, unless
// that is None (see `Notified`).
PyObject* interceptor_notify(PyObject* self, PyObject* args) {
  PyObject *cursors, *watcher = Py_None;
  if (!PyArg_ParseTuple(args, "O!|O", &PyTuple_Type, &cursors, &watcher)) return nullptr;
  if (watcher == Py_None) watcher = nullptr;
  for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(cursors); place++)
    if (!is_a<&cursor_type>(PyTuple_GET_ITEM(cursors, place)))
      return PyErr_Format(PyExc_TypeError, "must be cursors");
  bool is_any = PyTuple_GET_SIZE(cursors) != 0 || watcher != nullptr;
  std::shared_ptr<Notified> before = std::exchange(
      interceptor_of(self)->notified, is_any ? std::make_shared<Notified>(cursors, watcher) : nullptr);
  Py_RETURN_NONE;
}

// Called by blocks of code that count as calls (see `begin_region` in torch_names/modules.py);
// `interceptor_forward_post`, too.
PyObject* interceptor_forward_pre(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (!check_count(count, 2) || !watch(self, args[0], args[1])) return nullptr;
  if (!NotifiedHere(interceptor_of(self)->notified).begin(args[0], args[1])) return nullptr;
  Py_RETURN_NONE;
}

PyObject* interceptor_forward_post(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (!check_count(count, 3)) return nullptr;
  if (!NotifiedHere(interceptor_of(self)->notified).end(args[0], args[1], args[2])) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef interceptor_methods[] = {{"notify", interceptor_notify, METH_VARARGS, nullptr},
                              {"forward_pre", FASTCALL(interceptor_forward_pre), METH_FASTCALL, nullptr},
                              {"forward_post", FASTCALL(interceptor_forward_post), METH_FASTCALL, nullptr},
                              {nullptr, nullptr, 0, nullptr}};

PyMemberDef interceptor_members[] = {{"__doc__", T_OBJECT, 0, 0, nullptr}, {nullptr, 0, 0, 0, nullptr}};

PyType_Slot interceptor_slots[] = {SLOT(Py_tp_base, &PyProperty_Type),
                            SLOT(Py_tp_new, interceptor_new),
                            SLOT(Py_tp_dealloc, interceptor_dealloc),
                            SLOT(Py_tp_descr_get, interceptor_get),
                            SLOT(Py_tp_descr_set, interceptor_set),
                            SLOT(Py_tp_members, interceptor_members),
                            SLOT(Py_tp_methods, interceptor_methods),
                            {0, nullptr}};
PyType_Spec interceptor_spec = {MODULE "Interceptor", 0, 0, Py_TPFLAGS_DEFAULT, interceptor_slots};

PyType_Slot intercepted_call_slots[] = {SLOT(Py_tp_dealloc, intercepted_call_dealloc),
                                 SLOT(Py_tp_call, intercepted_call_call),
                                 {0, nullptr}};
PyType_Spec intercepted_call_spec = {MODULE "InterceptedCall", sizeof(InterceptedCall), 0, Py_TPFLAGS_DEFAULT, intercepted_call_slots};

void measure_interceptor() {
  interceptor_offset = PyProperty_Type.tp_basicsize;
  interceptor_members[0].offset = interceptor_offset + Py_ssize_t(offsetof(Interceptor, doc));
  interceptor_spec.basicsize = int(interceptor_offset + Py_ssize_t(sizeof(Interceptor)));
}

}  // namespace
