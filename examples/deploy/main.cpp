// Runs a planned model from C++, opened by the lines that `onnxremat inspect out.onnx --region`
// prints, and prints the sum of its first output. Inputs: every element 0.5. With BYTES the process
// may take so many more (Linux) than it has once the runtime is loaded: a session of TINY.onnx opened.
//
//   g++ -std=c++17 main.cpp -I ONNXRUNTIME/include -L ONNXRUNTIME/lib -lonnxruntime -o deploy

#include <cstdio>
#include <fstream>
#include <functional>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#ifdef __linux__
#include <sys/resource.h>
#endif

#include <onnxruntime_cxx_api.h>

// A hard limit: memory beyond it is refused, and the run ends with an error.
static void allow(long long bytes, const char* tiny) {
  Ort::Env env;
  Ort::Session(env, tiny, Ort::SessionOptions{});
#ifdef __linux__
  std::ifstream status("/proc/self/status");
  long long kibibytes = 0;
  for (std::string word; status >> word;)
    if (word == "VmData:") status >> kibibytes;
  const rlim_t most = kibibytes * 1024 + bytes;
  const rlimit limit{most, most};
  if (setrlimit(RLIMIT_DATA, &limit) != 0) std::perror("no limit");
#else
  (void)bytes;
#endif
}

int main(int count, char** words) {
  if (count != 1 && count != 3) {
    std::fprintf(stderr, "usage: deploy [BYTES TINY.onnx]\n");
    return 2;
  }
  try {
    if (count == 3) allow(std::stoll(words[1]), words[2]);
#include "session.inc"  // lines that `onnxremat inspect out.onnx --region` prints
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
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "error: no memory is left within the limit\n");
    return 1;
  }
  return 0;
}
