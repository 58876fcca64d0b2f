/* Calls with their time booked on a phase, for stopwatch.py.

A wrapper in Python around calls of 50 us makes them a tenth longer, and by more than it
takes where nothing else runs: the program pushes it out of the processor's caches
between two calls. This takes two readings of the clock and a few stores. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <time.h>

enum { PHASES = 32, DEEPEST = 4096 };

static struct {
  unsigned long main_thread;
  int depth;
  long long since_ns;
  int open[DEEPEST];
  long long spent_ns[PHASES], passed[PHASES], opened[PHASES];
} watch;

static long long now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* What has passed since the last change belongs to the phase that is open. */
static void settle(void) {
  long long now = now_ns();
  if (watch.depth) watch.spent_ns[watch.open[watch.depth - 1]] += now - watch.since_ns;
  watch.since_ns = now;
}

static int is_elsewhere(void) {
  return PyThread_get_thread_ident() != watch.main_thread || watch.depth == DEEPEST;
}

typedef struct {
  PyObject_HEAD
  PyObject *function, *dict;
  vectorcallfunc call;
  int phase;
  unsigned within; /* a bit for each phase of which its calls are a part */
} Timed;

static PyObject *timed_call(PyObject *self, PyObject *const *args, size_t count,
                            PyObject *names) {
  Timed *timed = (Timed *)self;
  if (is_elsewhere()) return PyObject_Vectorcall(timed->function, args, count, names);
  if (watch.depth) {
    int innermost = watch.open[watch.depth - 1];
    if (timed->within >> innermost & 1) {
      ++watch.passed[innermost];
      return PyObject_Vectorcall(timed->function, args, count, names);
    }
  }
  settle();
  ++watch.opened[timed->phase];
  watch.open[watch.depth++] = timed->phase;
  PyObject *result = PyObject_Vectorcall(timed->function, args, count, names);
  settle();
  --watch.depth;
  return result;
}

static PyObject *timed_get(PyObject *self, PyObject *object, PyObject *type) {
  (void)type;
  if (object == NULL || object == Py_None) return Py_NewRef(self);
  return PyMethod_New(self, object);
}

static int timed_traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(((Timed *)self)->function);
  Py_VISIT(((Timed *)self)->dict);
  return 0;
}

static int timed_clear(PyObject *self) {
  Py_CLEAR(((Timed *)self)->function);
  Py_CLEAR(((Timed *)self)->dict);
  return 0;
}

static void timed_free(PyObject *self) {
  PyObject_GC_UnTrack(self);
  timed_clear(self);
  PyObject_GC_Del(self);
}


static PyGetSetDef timed_attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL}, {0}};

static PyTypeObject timed_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "phase_clock.Timed",
    .tp_basicsize = sizeof(Timed),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_METHOD_DESCRIPTOR |
                Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Timed, call),
    .tp_dictoffset = offsetof(Timed, dict),
    .tp_getset = timed_attributes,
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = timed_get,
    .tp_traverse = timed_traverse,
    .tp_clear = timed_clear,
    .tp_dealloc = timed_free,
};

static PyObject *around(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *function;
  int phase;
  unsigned within;
  if (!PyArg_ParseTuple(args, "OiI", &function, &phase, &within)) return NULL;
  if (phase < 0 || phase >= PHASES) {
    return PyErr_Format(PyExc_ValueError, "no such phase: %d", phase);
  }
  Timed *timed = PyObject_GC_New(Timed, &timed_type);
  if (timed == NULL) return NULL;
  timed->function = Py_NewRef(function);
  timed->dict = NULL;
  timed->call = timed_call;
  timed->phase = phase;
  timed->within = within;
  PyObject_GC_Track(timed);
  return (PyObject *)timed;
}

static PyObject *open_phase(PyObject *module, PyObject *phase) {
  (void)module;
  if (!is_elsewhere()) {
    settle();
    watch.open[watch.depth++] = (int)PyLong_AsLong(phase);
  }
  Py_RETURN_NONE;
}

static PyObject *close_phase(PyObject *module, PyObject *phase) {
  (void)module;
  int closed = (int)PyLong_AsLong(phase);
  if (!is_elsewhere() && watch.depth && watch.open[watch.depth - 1] == closed) {
    settle();
    --watch.depth;
  }
  Py_RETURN_NONE;
}

/* Nanoseconds, calls that were a part of it, and calls that opened it. */
static PyObject *totals(PyObject *module, PyObject *phase) {
  (void)module;
  long which = PyLong_AsLong(phase);
  return Py_BuildValue("LLL", watch.spent_ns[which], watch.passed[which],
                       watch.opened[which]);
}

static PyObject *clear(PyObject *module, PyObject *none) {
  (void)module, (void)none;
  for (int phase = 0; phase < PHASES; ++phase) {
    watch.spent_ns[phase] = watch.passed[phase] = watch.opened[phase] = 0;
  }
  Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"around", around, METH_VARARGS, "A function, with its time on a phase."},
    {"open_phase", open_phase, METH_O, "What follows is of that phase."},
    {"close_phase", close_phase, METH_O, "It ends, if it is the innermost."},
    {"totals", totals, METH_O, "Nanoseconds of a phase, calls in it, and of it."},
    {"clear", clear, METH_NOARGS, "Forget what was counted."},
    {0},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "phase_clock", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit_phase_clock(void) {
  watch.main_thread = PyThread_get_thread_ident();
  if (PyType_Ready(&timed_type) < 0) return NULL;
  return PyModule_Create(&definition);
}
