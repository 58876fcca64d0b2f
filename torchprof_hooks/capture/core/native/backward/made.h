// The nodes that a pass makes (create_graph=True) belong to the calls whose backward makes
// them. Each thread numbers the nodes that it makes, and the engine runs parts of a pass in
// other threads than the one that is followed. So both numbers of an interval must come from
// one thread: where a pass goes on in another one, all open intervals end, and begin anew.

#pragma once

#include "../cursor.h"

namespace {

// Where intervals of the nodes belong that a thread has made in passes.
std::vector<int64_t>& made_in(Cursor* cursor, uint64_t thread) {
  Pass& outermost = cursor->running->passes.front();  // begun by the thread that is followed
  return thread == outermost.made_by ? cursor->intervals : outermost.elsewhere[thread];
}

// Ends the intervals of all open calls but the first `kept`, innermost first, at the number
// that was read last.
void own_made_nodes(Cursor* cursor, const Pass& pass, size_t kept) {
  for (size_t place = pass.open.size(); place > kept; place--) {
    const Node* node = pass.open[place - 1].node;
    if (node->low == pass.number) continue;
    std::vector<int64_t>& made = made_in(cursor, pass.counts_in);
    made.insert(made.end(), {node->code, node->low, pass.number});
  }
}

// Reads the counter of this thread. If that of another thread was read before, the intervals
// of all open calls end there, at the number that was read last, and begin anew here.
void count_here(Cursor* cursor, Pass& pass) {
  uint64_t here = at::RecordFunction::currentThreadId();
  if (here != pass.counts_in) {
    own_made_nodes(cursor, pass, 0);
    pass.counts_in = here;
    for (const OpenBackward& one : pass.open) one.node->low = next_number();
  }
  pass.number = next_number();
}

// The pass is about to go over to other owners: all open calls but the first `kept` end.
void own_before_move(Cursor* cursor, Pass& pass, size_t kept) {
  count_here(cursor, pass);
  own_made_nodes(cursor, pass, kept);
}

// A node has ended. This thread's counter is read now, as the next node may run in another
// thread, which cannot read it.
void count_after_node(Pass& pass) {
  if (pass.counts_in == at::RecordFunction::currentThreadId()) pass.number = next_number();
}

}  // namespace
