// How calls of modules begin and end: hooks or an interceptor notify cursors.

#pragma once

#include <c10/util/SmallVector.h>

#include "calls.h"

namespace {

// The node of the module's open call; null: it has none, as it began before the thread was followed.
Node* open_call_of(Cursor* cursor, PyObject* module) {
  if (cursor->site->key == reinterpret_cast<uint64_t>(module)) return cursor->site;
  Node* found = nullptr;
  each_open(cursor, [&](Node* node) {
    if (found == nullptr && node->key == reinterpret_cast<uint64_t>(module)) found = node;
  });
  return found;
}

PyObject* forward_pre(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (!check_count(count, 2)) return nullptr;
  Cursor* cursor = Cursor::of(self);
  if (!works_here(cursor) || cursor->site->is_loading) Py_RETURN_NONE;
  Node* node = cursor->site->children.find(reinterpret_cast<uint64_t>(args[0]));
  bool is_new = node == nullptr;
  if (is_new) {
    OurWork ours(cursor);
    Owned found(call_method(self, names.called_site, args[0]));
    if (!found) return nullptr;
    if (found.get() == Py_None) {
      cursor->site->ignored += open_call_of(cursor, args[0]) != nullptr;
      Py_RETURN_NONE;
    }
    node = Node::of(found.get());
  }
  open_call(cursor, node, is_new);
  if (!call_back(self, names.called, node, args[1])) return nullptr;
  Py_RETURN_NONE;
}

PyObject* forward_post(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (!check_count(count, 3)) return nullptr;
  Cursor* cursor = Cursor::of(self);
  if (!works_here(cursor) || cursor->site->is_loading) Py_RETURN_NONE;
  Nanoseconds end_ns = clock_ns();
  Node* node = open_call_of(cursor, args[0]);
  if (node == nullptr) Py_RETURN_NONE;
  if (cursor->site->ignored != 0) {  // a call inside of it ends that is not followed
    cursor->site->ignored--;
    Py_RETURN_NONE;
  }
  if (cursor->site != node) {  // an exception, of which nobody notified us, has left calls inside open
    Nanoseconds last_ns = std::max<Nanoseconds>(cursor->site->start_ns, cursor->log->last_end_ns);
    if (!abort_down_to(cursor, node, last_ns)) return nullptr;
  }
  read_at_end(cursor, node);
  go_to(cursor, node->around());
  end_own(cursor, node);
  if (args[2] == Py_None && !is_done(call_method(self, names.count_if_aborted))) return nullptr;
  if (node->is_entry && cursor->owns_nodes) {
    if (finish_entry(cursor, node, end_ns, args[2], cursor->site == cursor->outside) < 0) return nullptr;
  } else {
    cursor->log->book(node->code, node->start_ns, end_ns);
  }
  if (fold_if_due(cursor) < 0 || !call_back(self, names.returned, node, args[2])) return nullptr;
  Py_RETURN_NONE;
}

// All cursors that are notified of module calls, in the order in which they came; never changes. It has copies
// of their thread numbers, side by side: to read the number in each cursor would take a cache miss
// for each.
// watcher: called before each call, in any thread; cursors that it adds are notified of the call. Or null.
class Notified {
 public:
  Notified(PyObject* tuple, PyObject* watcher) : watcher_(Py_XNewRef(watcher)) {
    for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(tuple); place++) {
      cursors_.push_back(Cursor::of(Py_NewRef(PyTuple_GET_ITEM(tuple, place))));
      threads_.push_back(cursors_.back()->thread);
    }
  }
  Notified(const Notified&) = delete;
  Notified& operator=(const Notified&) = delete;
  ~Notified() {
    for (Cursor* cursor : cursors_) Py_DECREF(cursor);
    Py_XDECREF(watcher_);
  }

  // False: an exception.
  bool watch(PyObject* module, PyObject* args) const {
    return watcher_ == nullptr || is_done(PyObject_CallFunctionObjArgs(watcher_, module, args, nullptr));
  }

  // Calls `use` with each cursor that is to be notified of the call that begins in this thread now, or ends.
  // Stops when `use` returns false; returns whether it never did.
  template <class Use>
  bool each_here(Use use) const {
    long thread = long(PyThread_get_thread_ident());
    // In a pass, this thread may work for a cursor of another thread: the engine has threads
    // of its own.
    bool is_in_pass = torch::autograd::get_current_graph_task_id() != -1;
    for (size_t place = 0; place < cursors_.size(); place++) {
      if (threads_[place] != thread && !is_in_pass) continue;
      Cursor* cursor = cursors_[place];
      if (cursor->thread != thread && PyList_GET_SIZE(cursor->passes) == 0) continue;
      if (!use(cursor)) return false;
    }
    return true;
  }
  bool is_any_here() const {
    return watcher_ != nullptr || !each_here([](Cursor*) { return false; });
  }

 private:
  PyObject* watcher_;
  std::vector<long> threads_;
  std::vector<Cursor*> cursors_;
};

// The cursors that are notified of one call. At its end, those with `on_pause` come last: it may end the steps
// of other cursors.
class NotifiedHere {
 public:
  explicit NotifiedHere(std::shared_ptr<Notified> notified) : notified_(std::move(notified)) {
    if (notified_ == nullptr) return;
    notified_->each_here([this](Cursor* cursor) {
      here_.push_back(cursor);
      return true;
    });
  }
  // `begin` and `end` return false with an exception. If a cursor raises in `begin`, those after it
  // are not notified of the call. For the others, that one included, the call has begun, and `end` is
  // still to be called.
  bool begin(PyObject* module, PyObject* args) {
    PyObject* arguments[] = {module, args};
    for (size_t place = 0; place < here_.size(); place++)
      if (!is_done(forward_pre(reinterpret_cast<PyObject*>(here_[place]), arguments, 2))) {
        here_.resize(place + 1);
        return false;
      }
    return true;
  }
  // All cursors are notified, even if one raises: the first exception is raised, and further ones
  // are only reported.
  bool end(PyObject* module, PyObject* args, PyObject* outputs) const {
    PyObject* arguments[] = {module, args, outputs};
    PyObject* raised = nullptr;
    for (bool has_pause : {false, true})
      for (Cursor* cursor : here_) {
        if ((cursor->on_pause != Py_None) != has_pause) continue;
        if (is_done(forward_post(cursor, arguments, 3))) continue;
        if (raised != nullptr)
          report_unraisable(reinterpret_cast<PyObject*>(Py_TYPE(module)));
        else
          raised = take_raised();
      }
    if (raised != nullptr) set_raised(raised);
    return raised == nullptr;
  }

 private:
  std::shared_ptr<Notified> notified_;  // keeps the cursors alive
  c10::SmallVector<Cursor*, 4> here_;
};

}  // namespace
