// Runs a planned model from C#, with the options that `onnxremat inspect out.onnx` prints, and prints
// the sum of its first output and by how many bytes the process grew meanwhile (Linux). Inputs: every
// element 0.5. Before, a tiny model is run, so that the runtime itself is not counted.
//
//   dotnet run -- out.onnx tiny.onnx

using System;
using System.Collections.Generic;
using System.Globalization;
using System.IO;
using System.Linq;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;

static class Program
{
    static void Main(string[] args)
    {
        using (var plain = new SessionOptions()) Run(args[1], plain);
        var before = Status("VmRSS:");
        using var options = new SessionOptions();
        Planned.Set(options);  // Options.cs: lines that `onnxremat inspect out.onnx` prints
        var sum = Run(args[0], options);
        Console.WriteLine(sum.ToString("G6", CultureInfo.InvariantCulture));
        Console.WriteLine(Status("VmHWM:") - before);
    }

    static double Run(string model, SessionOptions options)
    {
        using var session = new InferenceSession(model, options);
        var inputs = new List<NamedOnnxValue>();
        foreach (var (name, about) in session.InputMetadata)
        {
            var tensor = new DenseTensor<float>(about.Dimensions);
            tensor.Fill(0.5f);
            inputs.Add(NamedOnnxValue.CreateFromTensor(name, tensor));
        }
        using var found = session.Run(inputs);
        return found.First().AsTensor<float>().Sum(value => (double)value);
    }

    // Bytes that Linux says of this process; 0 elsewhere.
    static long Status(string field)
    {
        const string file = "/proc/self/status";
        var line = File.Exists(file) ? File.ReadLines(file).FirstOrDefault(l => l.StartsWith(field)) : null;
        var words = line?.Split(new[] { ' ', '\t' }, StringSplitOptions.RemoveEmptyEntries);
        return words == null ? 0 : 1024 * long.Parse(words[1], CultureInfo.InvariantCulture);
    }
}
