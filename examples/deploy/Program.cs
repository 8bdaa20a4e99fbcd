// Runs a planned model from C#, with the options that `onnxremat inspect out.onnx` prints, and prints
// the sum of its first output. Inputs: every element 0.5.

using System;
using System.Collections.Generic;
using System.Globalization;
using System.Linq;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;

using var options = new SessionOptions();
Planned.Set(options);  // Options.cs: lines that `onnxremat inspect out.onnx` prints
using var session = new InferenceSession(args[0], options);

var inputs = new List<NamedOnnxValue>();
foreach (var (name, about) in session.InputMetadata)
{
    var tensor = new DenseTensor<float>(about.Dimensions);
    tensor.Fill(0.5f);
    inputs.Add(NamedOnnxValue.CreateFromTensor(name, tensor));
}
using var found = session.Run(inputs);
var sum = found.First().AsTensor<float>().Sum(value => (double)value);
Console.WriteLine(sum.ToString("G6", CultureInfo.InvariantCulture));
