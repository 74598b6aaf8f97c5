"""Convolutions that stay fast when many clients train: inside loops, under `vmap` over clients, with their gradients.

All of them compute, up to rounding, what `lax.conv_general_dilated` computes (NHWC images, HWIO kernels),

    y[n, p, q, o] = sum_ijc x[n, p s + i - pad, q s + j - pad, c] w[i, j, c, o],

where (i, j) is a *tap* of the kernel w and s the stride:

- `patches`: gathers the pixels under the kernel as rows, [N P Q, r r C], and multiplies them with the kernel in one
  matmul. Chosen for images of up to 64 x 64 pixels on accelerators and, on a CPU, wherever neither of the next two
  applies (`--conv gemm`).
- `winograd`: minimal filtering, 16 products instead of 36 for a 2 x 2 output tile of a 3x3 kernel (Lavin and Gray,
  CVPR 2016). Chosen on a CPU for 3x3 kernels of stride 1 with 16 channels or more (`--conv winograd`).
- `taps`: one small matmul per tap, over the outputs for which that tap meets a real pixel. Chosen on a CPU for images
  of two or three pixels, where most patches would be padding.
- `planes`: images of a minibatch innermost, so that 6 to 64 channels keep a CPU's vector units busy; a convolution that
  is pooled next can compute the 2x2 pooling windows on a separate axis (`--conv planes`; chosen on a CPU for few
  input channels, as in tinycnn, cnn and lenet5).
- `rewrite`: takes the one of the first three with the fewest products, and applies the `--conv` of a run to any
  function, for the current hardware (`host.hardware` holds the table). Networks are written with `nn.Conv` and
  `nn.max_pool`, the package's and a user's alike.
- `layout_tagged`: images of such a function that stay innermost from one layer to the next.

`lax` is XLA's own convolution, chosen on accelerators for images above 64 x 64 pixels.
"""
