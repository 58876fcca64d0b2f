"""What was taken over from Chainer, TensorFlow and Theano, and the profiler itself."""
