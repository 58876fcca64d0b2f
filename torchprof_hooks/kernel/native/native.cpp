// The native core: a Cursor follows one thread through its tree of calls, and books what each took.
//
// It does the same as reference/cursor.py, under the same names; that file explains them.
// Only hot code is here: no names of modules, no files, no reports. Rare cases are left
// to methods of the Python class that derives from Cursor.
//
// Forward: an interceptor (calls/interceptor.h) or torch's hooks call forward_pre and forward_post.
// Backward: the autograd engine calls us before and after each node (at::RecordFunction),
// with the number of the node and of the thread that made it, and without Python's global
// interpreter lock (the GIL). Whose node it is: attribution.h.

#include "backward/passes.h"
#include "calls/operators.h"
#include "calls/interceptor.h"
#include "collections.h"
#include "reading.h"
#include "self_test.h"

#include <torch/csrc/api/include/torch/version.h>

#include <cstdio>

// The core is one translation unit, split into headers only to make it easier to read.

namespace {

PyMemberDef cursor_members[] = {
    {"thread", T_LONG, offsetof(Cursor, thread), 0, nullptr},
    {"sites", T_OBJECT, offsetof(Cursor, sites), 0, nullptr},
    {"passes", T_OBJECT, offsetof(Cursor, passes), 0, nullptr},
    {"on_pause", T_OBJECT, offsetof(Cursor, on_pause), 0, nullptr},
    {"callbacks", T_OBJECT, offsetof(Cursor, callbacks), 0, nullptr},
    {"functions", T_OBJECT, offsetof(Cursor, functions), 0, nullptr},
    {"log", T_OBJECT, offsetof(Cursor, log), READONLY, nullptr},
    {"entered_ns", T_LONGLONG, offsetof(Cursor, entered_ns), 0, nullptr},
    {"gives_time_back", T_BOOL, offsetof(Cursor, gives_time_back), 0, nullptr},
    {"owns_nodes", T_BOOL, offsetof(Cursor, owns_nodes), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyGetSetDef cursor_getset[] = {
    {"site", cursor_get<&Cursor::site>, cursor_set_node<&Cursor::site>, nullptr, nullptr},
    {"outside", cursor_get<&Cursor::outside>, cursor_set_node<&Cursor::outside>, nullptr, nullptr},
    {"garbage", cursor_get<&Cursor::garbage>, cursor_set_node<&Cursor::garbage>, nullptr, nullptr},
    {"profiler", cursor_get<&Cursor::profiler>, cursor_set_node<&Cursor::profiler>, nullptr, nullptr},
    {"memory", cursor_get_meter<&Meters::memory>, cursor_set_memory, nullptr, nullptr},
    {"device", cursor_get_meter<&Meters::device>, cursor_set_device, nullptr, nullptr},
    {"tape_sizes", tape_sizes, nullptr, nullptr, nullptr},
    {"open_backward", open_backward, nullptr, nullptr, nullptr},
    {"pass_owner", pass_owner, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef cursor_methods[] = {
    {"forward_pre", FASTCALL(forward_pre), METH_FASTCALL, nullptr},
    {"forward_post", FASTCALL(forward_post), METH_FASTCALL, nullptr},
    {"works_here", py_works_here, METH_NOARGS, nullptr},
    {"open_entry", open_entry, METH_O, nullptr},
    {"close_entry", FASTCALL(close_entry), METH_FASTCALL, nullptr},
    {"end_entry", py_end_entry, METH_VARARGS, nullptr},
    {"observe_operators", observe_operators, METH_O, nullptr},
    {"look_for_device", py_look_for_device, METH_NOARGS, nullptr},
    {"owners_moved", owners_moved, METH_VARARGS, nullptr},
    {"book", append, METH_O, nullptr},
    {"last_booked_ns", last_booked_ns, METH_NOARGS, nullptr},
    {"fold_if_due", fold_log, METH_NOARGS, nullptr},
    {"own_from", py_own_from, METH_VARARGS, nullptr},
    {"own_until", py_own_until, METH_VARARGS, nullptr},
    {"owners_of", owners_of, METH_VARARGS, nullptr},
    {"enter_pass", FASTCALL(enter_pass), METH_VARARGS | METH_KEYWORDS, nullptr},
    {"finish_pass", finish_pass, METH_O, nullptr},
    {"reach_node", reach_node, METH_NOARGS, nullptr},
    {"leave_pass", leave_pass, METH_VARARGS, nullptr},
    {"drop_pass", drop_pass, METH_O, nullptr},
    {"read_times", read_times, METH_NOARGS, nullptr},
    {"read_memory", read_memory, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot cursor_slots[] = {SLOT(Py_tp_new, cursor_new),
                              SLOT(Py_tp_dealloc, cursor_dealloc),
                              SLOT(Py_tp_traverse, Cursor::traverse),
                              SLOT(Py_tp_clear, cursor_clear),
                              SLOT(Py_tp_members, cursor_members),
                              SLOT(Py_tp_getset, cursor_getset),
                              SLOT(Py_tp_methods, cursor_methods),
                              {0, nullptr}};
PyType_Spec cursor_spec = {MODULE "Cursor", sizeof(Cursor), 0, kWithCycles, cursor_slots};

PyMethodDef module_methods[] = {{"set_clock", set_clock, METH_O, nullptr},
                                {"around_collection", FASTCALL(around_collection), METH_FASTCALL, nullptr},
                                {"interrupt_by_collections", interrupt_by_collections, METH_O, nullptr},
                                {"carry_no_ended", py_carry_no_ended, METH_NOARGS, nullptr},
                                {"differs", self_test::py_differs, METH_VARARGS, nullptr},
                                {nullptr, nullptr, 0, nullptr}};

PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "torchprof_hooks_native", nullptr, -1, module_methods, nullptr, nullptr, nullptr, nullptr};

// Objects are laid out differently in each minor version of Python.
bool is_for_this_python() {
  int major = 0, minor = 0;
  std::sscanf(Py_GetVersion(), "%d.%d", &major, &minor);
  return major == PY_MAJOR_VERSION && minor == PY_MINOR_VERSION;
}

}  // namespace

PyMODINIT_FUNC PyInit_torchprof_hooks_native() {
  if (!is_for_this_python()) return PyErr_Format(PyExc_ImportError, "it was built for Python " PY_VERSION);
  PyObject* module = PyModule_Create(&module_definition);
  if (module == nullptr) return nullptr;
  names.intern();
  measure_interceptor();
  PyTypeObject* interceptor_type;
  std::pair<PyType_Spec*, PyTypeObject**> types[] = {{&node_spec, &node_type},
                                                     {&log_spec, &log_type},
                                                     {&cursor_spec, &cursor_type},
                                                     {&interceptor_spec, &interceptor_type},
                                                     {&intercepted_call_spec, &intercepted_call_type}};
  for (auto [spec, type] : types)
    if (!add_type(module, spec, type)) return nullptr;
  if (!add_meters(module)) return nullptr;
  pthread_atfork(nullptr, nullptr, forget_other_threads);
  // For Python to check, before anything else (see self_test.h).
  PyModule_AddStringConstant(module, "torch_version", TORCH_VERSION);
  return module;
}
