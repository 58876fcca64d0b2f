// The nodes that a pass makes (create_graph=True) belong to the calls whose backward makes
// them. Each thread counts its own, and the engine runs parts of a pass in others than the
// one that is followed: an interval has both its numbers from one thread.

#pragma once

#include "../cursor.h"

namespace {

// The intervals of what a thread has made in passes.
std::vector<int64_t>& made_in(Cursor* cursor, uint64_t thread) {
  Pass& outermost = cursor->running->passes.front();  // begun by the thread that is followed
  return thread == outermost.made_by ? cursor->intervals : outermost.elsewhere[thread];
}

// Ends the intervals of all that is open but for the first `kept`, innermost first.
void own_made_nodes(Cursor* cursor, const Pass& pass, size_t kept) {
  for (size_t place = pass.open.size(); place > kept; place--) {
    const Node* node = pass.open[place - 1].node;
    if (node->low == pass.number) continue;
    std::vector<int64_t>& made = made_in(cursor, pass.counts_in);
    made.insert(made.end(), {node->code, node->low, pass.number});
  }
}

// Reads the counter of this thread. If it was another's that was read before, all that is
// open ends there, at what was read last, and begins here.
void count_here(Cursor* cursor, Pass& pass) {
  uint64_t here = at::RecordFunction::currentThreadId();
  if (here != pass.counts_in) {
    own_made_nodes(cursor, pass, 0);
    pass.counts_in = here;
    for (const OpenBackward& one : pass.open) one.node->low = next_number();
  }
  pass.number = next_number();
}

// The pass goes over to others: all that is open but for the first `kept` ends.
void own_before_move(Cursor* cursor, Pass& pass, size_t kept) {
  count_here(cursor, pass);
  own_made_nodes(cursor, pass, kept);
}

// A node has ended: whoever comes next may come in another thread.
void count_after_node(Pass& pass) {
  if (pass.counts_in == at::RecordFunction::currentThreadId()) pass.number = next_number();
}

}  // namespace
