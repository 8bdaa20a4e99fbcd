. /tmp/w/x-fission/env.sh
cd /tmp/w/x-fission/ut
[ -f u.onnx ] || (cd /tmp/w/t-fission && $PY -m models unet /tmp/w/x-fission/ut/u.onnx --batch 1 --size 256 --width 16 --levels 3)
O="--train --batch-norm frozen --threads 1 --not-counted inputs,state,session,updates"
$PY -m onnxremat optimize u.onnx w.onnx $O --budget 2x > w.log 2>&1
for b in 0.3315 0.2486; do $PY -m onnxremat optimize u.onnx s$b.onnx $O --budget ${b}x > s$b.log 2>&1; done
echo done >> s0.2486.log
