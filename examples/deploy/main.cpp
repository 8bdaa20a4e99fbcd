// Runs a planned model from C++, with the options that `onnxremat inspect out.onnx` prints, and
// prints the sum of its first output. Inputs: every element 0.5.
//
//   g++ -std=c++17 main.cpp -I ONNXRUNTIME/include -L ONNXRUNTIME/lib -lonnxruntime -o deploy

#include <cstdio>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <onnxruntime_cxx_api.h>

int main(int count, char** words) {
  if (count != 2) {
    std::fprintf(stderr, "usage: deploy out.onnx\n");
    return 2;
  }
  try {
    Ort::Env env;
    Ort::SessionOptions options;
#include "options.inc"  // lines that `onnxremat inspect out.onnx` prints
    Ort::Session session(env, words[1], options);
    Ort::AllocatorWithDefaultOptions allocator;
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);

    std::vector<Ort::AllocatedStringPtr> kept;
    std::vector<const char*> inputs, outputs;
    std::vector<std::vector<float>> arrays(session.GetInputCount());
    std::vector<Ort::Value> values;
    for (std::size_t k = 0; k < session.GetInputCount(); ++k) {
      kept.push_back(session.GetInputNameAllocated(k, allocator));
      inputs.push_back(kept.back().get());
      const auto type = session.GetInputTypeInfo(k);
      const auto shape = type.GetTensorTypeAndShapeInfo().GetShape();
      const auto size = std::accumulate(shape.begin(), shape.end(), std::int64_t{1},
                                        std::multiplies<std::int64_t>());
      arrays[k].assign(size, 0.5f);
      values.push_back(Ort::Value::CreateTensor<float>(memory, arrays[k].data(), size,
                                                       shape.data(), shape.size()));
    }
    for (std::size_t k = 0; k < session.GetOutputCount(); ++k) {
      kept.push_back(session.GetOutputNameAllocated(k, allocator));
      outputs.push_back(kept.back().get());
    }
    auto found = session.Run(Ort::RunOptions{}, inputs.data(), values.data(), values.size(),
                             outputs.data(), outputs.size());
    const float* first = found[0].GetTensorData<float>();
    const auto size = found[0].GetTensorTypeAndShapeInfo().GetElementCount();
    std::printf("%.6g\n", std::accumulate(first, first + size, 0.0));
  } catch (const Ort::Exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
